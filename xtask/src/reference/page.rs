//! One reference page.

use super::defaults::{Items, attribute, has_word};
use super::inner::Inner;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use syn::{Attribute, Expr, Field, ItemStruct, Lit, Meta};

/// A page, and the sources of the types of which it is made.
pub(super) struct Page {
    /// Its file's name, without the extension.
    pub(super) name: &'static str,
    /// Its heading.
    pub(super) title: &'static str,
    /// The page of `docs` that explains how to use the file.
    pub(super) guide: &'static str,
    /// The type of the whole file.
    pub(super) root: &'static str,
    /// The sources. The first one has the root.
    pub(super) files: &'static [&'static str],
}

impl Page {
    /// Returns the page's text, made of the texts of its files.
    pub(super) fn text(&self, sources: &[String]) -> Result<String> {
        let items = Items::parse(sources)?;
        let Page {
            title,
            guide,
            root,
            files,
            ..
        } = self;
        let mut text = format!(
            "# {title}\n\n[{guide}](../{guide}) explains how to use these keys. An unknown key or a wrong value is refused, \
             with the line and what would be right. Paths are relative to the file. This page is made from the comments in \
             `{}` by `cargo run -p xtask -- reference`.\n",
            files[0]
        );
        section(&items, &mut text, root, &[], None)?;
        Ok(text)
    }
}

/// Appends the table of a struct, and those of the structs in it. `field` holds it, which is in `path`, on a condition
/// that follows in words if it is not empty.
fn section(
    items: &Items,
    text: &mut String,
    name: &str,
    path: &[String],
    field: Option<(&Field, &str)>,
) -> Result<()> {
    let item: &ItemStruct = items.structs.get(name).context("no such struct")?;
    let (tables, keys): (Vec<_>, Vec<_>) = fields(items, item)?
        .into_iter()
        .partition(|(_, field)| items.structs.contains_key(&Inner::of(&field.ty).name));
    if let Some((field, condition)) = field {
        let path = path.join(".");
        match Inner::of(&field.ty).many {
            true => writeln!(text, "\n## `[[{path}]]`{condition}")?,
            false => writeln!(text, "\n## `[{path}]`{condition}")?,
        }
        let comments = [&item.attrs, &field.attrs].map(|attributes| comment(attributes));
        if let Some(comment) = comments.iter().find(|comment| !comment.is_empty()) {
            writeln!(text, "\n{comment}")?;
        }
    }
    if !keys.is_empty() {
        writeln!(text, "\n| key | default | |\n|---|---|---|")?;
    }
    for (of, field) in &keys {
        let key = key(field)?;
        let row = row(items, of, field).with_context(|| format!("{}, {key}", of.ident))?;
        writeln!(text, "| `{key}` | {row} |")?;
    }
    for (_, field) in keys {
        let path = [path, &[key(field)?]].concat();
        for (condition, held) in items.tagged(&Inner::of(&field.ty).name) {
            let name = Inner::of(&held.ty).name;
            section(items, text, &name, &path, Some((held, condition.as_str())))?;
        }
    }
    for (_, field) in tables {
        let inner = Inner::of(&field.ty);
        let path = [path, &[key(field)?]].concat();
        section(items, text, &inner.name, &path, Some((field, "")))?;
    }
    Ok(())
}

/// Returns the fields of a struct, each with its struct: a flattened field stands for those of its type.
fn fields<'a>(items: &'a Items, item: &'a ItemStruct) -> Result<Vec<(&'a ItemStruct, &'a Field)>> {
    let mut found = Vec::new();
    for field in &item.fields {
        if has_word(&field.attrs, "flatten") {
            let name = Inner::of(&field.ty).name;
            let inner = items.structs.get(&name);
            found.extend(fields(
                items,
                inner.with_context(|| format!("no struct {name}"))?,
            )?);
        } else {
            found.push((item, field));
        }
    }
    Ok(found)
}

fn key(field: &Field) -> Result<String> {
    let name = field.ident.as_ref().context("a field without name")?;
    Ok(name.to_string())
}

/// The starts of a comment's last sentence that has the default. The second one is that of a key which has no default
/// elsewhere than in the file.
const DEFAULTS: [&str; 2] = ["Default: ", "Default in the file: "];

/// Returns the default and the description of a key.
fn row(items: &Items, item: &ItemStruct, field: &Field) -> Result<String> {
    let inner = Inner::of(&field.ty);
    let mut description = comment(&field.attrs).replace('|', "\\|");
    let said = DEFAULTS.iter().find_map(|start| {
        let (before, said) = description.rsplit_once(start)?;
        Some((before.to_owned(), said.trim_end_matches('.').to_owned()))
    });
    let default = match said {
        Some((before, said)) => {
            description = before;
            said
        }
        None => match attribute(&field.attrs, "default") {
            Some(function) => format!("`{}`", items.result_of(&function)?),
            None if inner.optional => "none".to_owned(),
            None if has_word(&field.attrs, "default") || has_word(&item.attrs, "default") => {
                format!("`{}`", items.default_of(item, field, &inner)?)
            }
            None => "required".to_owned(),
        },
    };
    if let Some(values) = items.values(&inner.name) {
        description = format!("{} One of {}.", description.trim(), values.join(", "));
    }
    Ok(format!("{default} | {}", description.trim()))
}

/// Returns the text of a comment in one line.
fn comment(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(meta) = &attribute.meta else {
            return None;
        };
        match &meta.value {
            Expr::Lit(value) if meta.path.is_ident("doc") => match &value.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        }
    });
    lines.collect::<Vec<_>>().join(" ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
        const PORT: u16 = 1_475;
        /// The file.
        #[derive(Deserialize)]
        struct File { node: Spanned<Node>, #[serde(default)] peer: Vec<Spanned<Peer>> }
        #[derive(Debug, Deserialize)]
        struct Node {
            /// The name.
            name: String,
            /// The port | the
            /// UDP one.
            #[serde(default = "port", deserialize_with = "checked")]
            port: u16,
            /// The place. Default: the machine's.
            place: Option<String>,
            #[serde(default)]
            hosts: Vec<String>,
            #[serde(default)]
            cover: Cover,
            #[serde(flatten)]
            shared: Shared,
            store: Store,
        }
        #[derive(Deserialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        enum Store { Here, Far(Far) }
        /// A store elsewhere.
        #[derive(Deserialize)]
        struct Far { user: Option<String> }
        #[derive(Deserialize)]
        struct Shared {
            /// The class. Default in the file: `0`.
            cost: Option<u8>,
        }
        /// One at the other end.
        #[derive(Deserialize)]
        #[serde(default)]
        struct Peer { days: f64, limits: Option<Limits> }
        impl Default for Peer { fn default() -> Self { Peer { days: 2.0, limits: None } } }
        #[derive(Deserialize)]
        struct Limits { size: Option<u64> }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "lowercase")]
        enum Cover { #[default] Headers, Whole }
        fn port() -> u16 { PORT }
    "#;

    #[test]
    fn a_page_has_the_keys_of_every_struct() {
        let page = Page {
            name: "x",
            title: "X",
            guide: "x.md",
            root: "File",
            files: &["x.rs"],
        };
        let text = page.text(&[SOURCE.to_owned()]).unwrap();
        let tables = text.split_once("\n\n## ").unwrap().1;
        let expected = "\
`[node]`

| key | default | |
|---|---|---|
| `name` | required | The name. |
| `port` | `1475` | The port \\| the UDP one. |
| `place` | the machine's | The place. |
| `hosts` | `[]` |  |
| `cover` | `\"headers\"` | One of `\"headers\"`, `\"whole\"`. |
| `cost` | `0` | The class. |
| `store` | required | One of `\"here\"`, `\"far\"`. |

## `[node.store]` with `kind = \"far\"`

A store elsewhere.

| key | default | |
|---|---|---|
| `user` | none |  |

## `[[peer]]`

One at the other end.

| key | default | |
|---|---|---|
| `days` | `2` |  |

## `[peer.limits]`

| key | default | |
|---|---|---|
| `size` | none |  |
";
        assert_eq!(tables, expected);
    }
}
