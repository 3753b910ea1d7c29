//! Contexts: named controllers in the configuration file.

use super::{ConnectionArgs, Settings};
use crate::output::Output;
use anyhow::{Context, Result, anyhow, bail};
use hawser_io::file::read_text;
use hawser_model::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, RawString, Table, value};

/// The permission bits of the file.
const MODE: u32 = 0o600;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the controllers in the configuration file
    #[command(after_help = "Example: hawser ctl context list")]
    List,
    /// Use a controller from now on
    #[command(after_help = "Example: hawser ctl context use site")]
    Use {
        /// Name of the context
        name: Name,
    },
    /// Add or change a controller: with --controller, --authority and --token-file
    ///
    /// The first one is used from now on. Files are stored with their absolute paths.
    #[command(
        after_help = "Example: hawser ctl context set site --controller https://control.example:14750 --authority ca.pem --token-file admin.token"
    )]
    Set {
        /// Name of the context
        name: Name,
    },
    /// Remove a controller from the configuration file
    #[command(after_help = "Example: hawser ctl context remove site")]
    Remove {
        /// Name of the context
        name: Name,
    },
}

/// The configuration file. The settings outside of contexts apply while no context is in use.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    controllers: Vec<String>,
    authority: Option<PathBuf>,
    token_file: Option<PathBuf>,
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Settings>,
}

impl File {
    /// Reads the file. One that was not named explicitly need not exist.
    pub(super) fn read(path: &Path, is_explicit: bool) -> Result<Self> {
        let text = match read_text(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && !is_explicit => {
                return Ok(File::default());
            }
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        File::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        toml::from_str(text).with_context(|| {
            format!(
                "{} is not valid; docs/ctl.md describes its keys",
                path.display()
            )
        })
    }

    /// Returns the settings of a context, or of the one in use.
    pub(super) fn settings(&self, context: Option<&str>) -> Result<Settings> {
        match context.or(self.current.as_deref()) {
            Some(name) => self
                .contexts
                .get(name)
                .cloned()
                .ok_or_else(|| self.unknown(name)),
            None => Ok(Settings {
                controllers: self.controllers.clone(),
                authority: self.authority.clone(),
                token_file: self.token_file.clone(),
            }),
        }
    }

    fn unknown(&self, name: &str) -> anyhow::Error {
        let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
        match known.is_empty() {
            true => anyhow!(
                "there is no context {name}: `hawser ctl context set {name} --controller URL ...` adds it"
            ),
            false => anyhow!("there is no context {name}, only {}", known.join(", ")),
        }
    }
}

/// A context in a list.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    current: bool,
    controllers: &'a [String],
    authority: Option<&'a Path>,
    token_file: Option<&'a Path>,
}

/// Runs a command, which talks to no controller.
pub(crate) fn run(command: &Command, connection: &ConnectionArgs, output: Output) -> Result<()> {
    let (path, _) = connection
        .path()
        .context("there is no home directory: name a configuration file with --config")?;
    match command {
        Command::List => list(&File::read(&path, false)?, output),
        Command::Use { name } => {
            edit(&path, |file, document| {
                if !file.contexts.contains_key(name.as_str()) {
                    bail!(file.unknown(name.as_str()));
                }
                document["current"] = value(name.as_str());
                Ok(())
            })?;
            output.done(&format!("context {name} is used from now on"))
        }
        Command::Set { name } => {
            edit(&path, |file, document| {
                set(name, connection, file, document)
            })?;
            output.done(&format!("context {name} set in {}", path.display()))
        }
        Command::Remove { name } => {
            edit(&path, |file, document| {
                if !file.contexts.contains_key(name.as_str()) {
                    bail!(file.unknown(name.as_str()));
                }
                if let Some(contexts) = document["contexts"].as_table_like_mut() {
                    contexts.remove(name.as_str());
                }
                if file.current.as_deref() == Some(name.as_str()) {
                    forget_current(document);
                }
                Ok(())
            })?;
            output.done(&format!("context {name} removed"))
        }
    }
}

fn list(file: &File, output: Output) -> Result<()> {
    let contexts: Vec<Listed<'_>> = file
        .contexts
        .iter()
        .map(|(name, settings)| Listed {
            name,
            current: file.current.as_ref() == Some(name),
            controllers: &settings.controllers,
            authority: settings.authority.as_deref(),
            token_file: settings.token_file.as_deref(),
        })
        .collect();
    let path = |path: Option<&Path>| crate::text::or_none(path.map(Path::display));
    output.list(
        &contexts,
        &["name", "used", "controllers", "authority", "token file"],
        |context| {
            vec![
                context.name.to_owned(),
                if context.current { "yes" } else { "" }.to_owned(),
                context.controllers.join(" "),
                path(context.authority),
                path(context.token_file),
            ]
        },
    )
}

/// Sets the keys of a context that are given.
fn set(
    name: &Name,
    connection: &ConnectionArgs,
    file: &File,
    document: &mut DocumentMut,
) -> Result<()> {
    if connection.controller.is_empty()
        && connection.authority.is_none()
        && connection.token_file.is_none()
    {
        bail!("give --controller, --authority and --token-file of the context {name}");
    }
    let mut contexts = Table::new();
    contexts.set_implicit(true);
    let contexts = document.entry("contexts").or_insert(Item::Table(contexts));
    let context = contexts
        .as_table_like_mut()
        .context("`contexts` is not a table")?
        .entry(name.as_str())
        .or_insert(Item::Table(Table::new()))
        .as_table_like_mut()
        .with_context(|| format!("`contexts.{name}` is not a table"))?;
    if !connection.controller.is_empty() {
        let urls = connection.controller.iter().map(ToString::to_string);
        context.insert("controllers", value(urls.collect::<toml_edit::Array>()));
    }
    let files = [
        ("authority", &connection.authority),
        ("token_file", &connection.token_file),
    ];
    for (key, path) in files {
        let Some(path) = path else { continue };
        let path =
            std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?;
        let path = path.to_str().context("a file's name is not UTF-8")?;
        context.insert(key, value(path));
    }
    let is_first = file.contexts.is_empty() && file.current.is_none();
    if is_first && file.controllers.is_empty() {
        document["current"] = value(name.as_str());
    }
    Ok(())
}

/// Removes the key that names the context in use. A comment above it stays.
fn forget_current(document: &mut DocumentMut) {
    let Some((key, _)) = document.remove_entry("current") else {
        return;
    };
    let comment = key.leaf_decor().prefix().and_then(RawString::as_str);
    let comment = comment.unwrap_or_default().to_owned();
    document.decor_mut().set_prefix(comment);
}

/// Changes the file, whose comments stay. It is not written if the result is not valid.
fn edit(path: &Path, change: impl FnOnce(&File, &mut DocumentMut) -> Result<()>) -> Result<()> {
    let text = match read_text(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let file = File::parse(&text, path)?;
    let mut document: DocumentMut = text.parse()?;
    change(&file, &mut document)?;
    let text = document.to_string();
    File::parse(&text, path)?;
    let write = || {
        if let Some(folder) = path.parent() {
            hawser_io::file::create_folder(folder, 0o777)?;
        }
        hawser_io::file::replace(path, text.as_bytes(), MODE)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn connection(folder: &Path, controller: &str) -> ConnectionArgs {
        ConnectionArgs {
            controller: vec![controller.parse().unwrap()],
            authority: Some(folder.join("authority.pem")),
            token_file: Some(folder.join("token")),
            config: Some(folder.join("sub/ctl.toml")),
            ..ConnectionArgs::default()
        }
    }

    #[test]
    fn contexts_are_set_used_and_removed_and_comments_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub/ctl.toml");
        let output = Output::default();
        let name = |text: &str| -> Name { text.parse().unwrap() };
        let go = |command: Command, controller: &str| {
            run(&command, &connection(folder.path(), controller), output)
        };
        let url = |context: Option<&str>| {
            let file = File::read(&path, true).unwrap();
            file.settings(context).map(|found| found.controllers)
        };
        go(Command::Set { name: name("lab") }, "https://lab:1").unwrap();
        assert_eq!(
            url(None).unwrap(),
            ["https://lab:1"],
            "the first one is used"
        );
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("# mine\n{text}")).unwrap();
        go(
            Command::Set {
                name: name("field"),
            },
            "https://field:1",
        )
        .unwrap();
        assert_eq!(url(None).unwrap(), ["https://lab:1"]);
        assert_eq!(url(Some("field")).unwrap(), ["https://field:1"]);
        go(
            Command::Use {
                name: name("field"),
            },
            "https://x:1",
        )
        .unwrap();
        assert_eq!(url(None).unwrap(), ["https://field:1"]);
        let error = go(Command::Use { name: name("sea") }, "https://x:1").unwrap_err();
        assert!(error.to_string().contains("field, lab"), "{error}");
        go(
            Command::Remove {
                name: name("field"),
            },
            "https://x:1",
        )
        .unwrap();
        assert_eq!(url(None).unwrap(), [""; 0], "no context is in use");
        assert!(url(Some("field")).is_err());
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# mine\n"), "{text}");
    }

    #[test]
    fn a_context_takes_no_credentials_of_another() {
        let text = "token_file = \"secret\"\n[contexts.lab]\ncontrollers = [\"https://lab:1\"]\n";
        let file = File::parse(text, Path::new("ctl.toml")).unwrap();
        assert_eq!(file.settings(Some("lab")).unwrap().token_file, None);
        assert!(file.settings(None).unwrap().token_file.is_some());
    }
}
