//! The reference pages of configuration files, `docs/reference/*.md`: `cargo run -p xtask -- reference` makes them
//! from the types that read the files, and the test command checks that they are up to date.
//!
//! A page has a table for each struct that is reached from a root. The comment of a field is the description of its
//! key. The default is that of serde's attribute, or, where it depends on something, that of the comment's last
//! sentence: `Default: TEXT.`, or `Default in the file: TEXT.` for a type that is not only in files.

mod defaults;
mod inner;
mod page;

use anyhow::{Context, Result, bail};
use page::Page;
use std::fs;
use std::path::Path;

const PAGES: [Page; 5] = [
    Page {
        name: "agent",
        title: "The agent's file",
        guide: "agent.md",
        root: "File",
        files: &[
            "replication/agent/src/config/file.rs",
            "replication/agent/src/config/select.rs",
            "replication/shim/src/lib.rs",
        ],
    },
    Page {
        name: "tunnel-client",
        title: "The file of a tunnel client",
        guide: "tunnel.md",
        root: "File",
        files: &[
            "tunnel/tunnel/src/config/client.rs",
            "control/model/src/tunnel/settings.rs",
            "tunnel/tunnel/src/config.rs",
        ],
    },
    Page {
        name: "tunnel-server",
        title: "The file of a tunnel server",
        guide: "tunnel.md",
        root: "File",
        files: &[
            "tunnel/tunnel/src/config/server.rs",
            "tunnel/tunnel/src/config/coding.rs",
            "tunnel/tunnel/src/config.rs",
        ],
    },
    Page {
        name: "relay",
        title: "The relay's file",
        guide: "relay.md",
        root: "File",
        files: &[
            "media/relay/src/config.rs",
            "media/relay/src/config/from_moq.rs",
            "media/fanout/src/lib.rs",
        ],
    },
    Page {
        name: "controller",
        title: "The controller's file",
        guide: "controller.md",
        root: "Config",
        files: &["control/controller/src/config.rs"],
    },
];

/// Writes the pages of the tree in `root`.
pub(crate) fn write(root: &Path) -> Result<()> {
    for page in &PAGES {
        let (path, text) = made(root, page)?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Fails if a page of the tree in `root` is not what [`write`] makes.
pub(crate) fn check(root: &Path) -> Result<()> {
    for page in &PAGES {
        let (path, text) = made(root, page)?;
        if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            bail!(
                "{} is not up to date: run `cargo run -p xtask -- reference`",
                path.display()
            );
        }
    }
    println!("{} reference pages are up to date", PAGES.len());
    Ok(())
}

/// Returns the path and the text of a page.
fn made(root: &Path, page: &Page) -> Result<(std::path::PathBuf, String)> {
    let read = |file: &&str| {
        let path = root.join(file);
        let text = fs::read_to_string(&path);
        text.with_context(|| format!("cannot read {}", path.display()))
    };
    let sources: Vec<_> = page.files.iter().map(read).collect::<Result<_>>()?;
    let text = page
        .text(&sources)
        .with_context(|| format!("the page {}", page.name))?;
    let path = root.join(format!("docs/reference/{}.md", page.name));
    Ok((path, text))
}
