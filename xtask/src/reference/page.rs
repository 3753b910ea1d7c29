//! One reference page.

use super::defaults::{Items, attribute, has_word};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use syn::{Attribute, Expr, Field, GenericArgument, ItemStruct, Lit, Meta, PathArguments, Type};

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

/// Appends the table of a struct, and those of the structs in it. `field` holds it, which is in `path`.
fn section(
    items: &Items,
    text: &mut String,
    name: &str,
    path: &[String],
    field: Option<&Field>,
) -> Result<()> {
    let item: &ItemStruct = items.structs.get(name).context("no such struct")?;
    let fields: Vec<&Field> = item.fields.iter().collect();
    let (tables, keys): (Vec<&Field>, Vec<&Field>) = fields
        .into_iter()
        .partition(|field| items.structs.contains_key(&Inner::of(&field.ty).name));
    if let Some(field) = field {
        let path = path.join(".");
        match Inner::of(&field.ty).many {
            true => writeln!(text, "\n## `[[{path}]]`")?,
            false => writeln!(text, "\n## `[{path}]`")?,
        }
        let comments = [&item.attrs, &field.attrs].map(|attributes| comment(attributes));
        if let Some(comment) = comments.iter().find(|comment| !comment.is_empty()) {
            writeln!(text, "\n{comment}")?;
        }
    }
    if !keys.is_empty() {
        writeln!(text, "\n| key | default | |\n|---|---|---|")?;
    }
    for field in keys {
        let key = key(field)?;
        let row = row(items, item, field).with_context(|| format!("{name}, {key}"))?;
        writeln!(text, "| `{key}` | {row} |")?;
    }
    for field in tables {
        let inner = Inner::of(&field.ty);
        let path = [path, &[key(field)?]].concat();
        section(items, text, &inner.name, &path, Some(field))?;
    }
    Ok(())
}

fn key(field: &Field) -> Result<String> {
    let name = field.ident.as_ref().context("a field without name")?;
    Ok(name.to_string())
}

/// Returns the default and the description of a key.
fn row(items: &Items, item: &ItemStruct, field: &Field) -> Result<String> {
    let inner = Inner::of(&field.ty);
    let mut description = comment(&field.attrs).replace('|', "\\|");
    let said = description
        .rfind("Default: ")
        .map(|at| description.split_off(at));
    let default = match said {
        Some(said) => said["Default: ".len()..].trim_end_matches('.').to_owned(),
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

/// The type of a field, without its wrappers.
pub(super) struct Inner {
    /// The name of the type.
    pub(super) name: String,
    /// Whether the key may be missing.
    pub(super) optional: bool,
    /// Whether there may be several.
    pub(super) many: bool,
}

const WRAPPERS: [&str; 3] = ["Option", "Spanned", "Vec"];

impl Inner {
    fn of(ty: &Type) -> Inner {
        let named = |name| Inner {
            name,
            optional: false,
            many: false,
        };
        let Type::Path(path) = ty else {
            return named(String::new());
        };
        let segment = path.path.segments.last().expect("a path has a segment");
        let name = segment.ident.to_string();
        let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
            return named(name);
        };
        match arguments.args.first() {
            Some(GenericArgument::Type(ty)) if WRAPPERS.contains(&name.as_str()) => {
                let inner = Inner::of(ty);
                Inner {
                    optional: inner.optional || name == "Option",
                    many: inner.many || name == "Vec",
                    ..inner
                }
            }
            _ => named(name),
        }
    }
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
