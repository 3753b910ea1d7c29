//! The items of a page's sources, and the values in them.

use super::inner::Inner;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use syn::{
    Attribute, Expr, Field, ImplItem, Item, ItemEnum, ItemImpl, ItemStruct, LitStr, Member, Stmt,
};

/// The items of the sources, by name.
pub(super) struct Items {
    pub(super) structs: BTreeMap<String, ItemStruct>,
    enums: BTreeMap<String, ItemEnum>,
    functions: BTreeMap<String, Expr>,
    constants: BTreeMap<String, Expr>,
    /// The values of `impl Default`, by type and field.
    fields: BTreeMap<(String, String), Expr>,
}

impl Items {
    /// Parses sources. Of items of the same name, that of the earlier source counts.
    pub(super) fn parse(sources: &[String]) -> Result<Items> {
        let mut items = Items {
            structs: BTreeMap::new(),
            enums: BTreeMap::new(),
            functions: BTreeMap::new(),
            constants: BTreeMap::new(),
            fields: BTreeMap::new(),
        };
        for source in sources {
            for item in syn::parse_file(source)?.items {
                items.add(item);
            }
        }
        Ok(items)
    }

    fn add(&mut self, item: Item) {
        match item {
            Item::Struct(item) if reads_files(&item.attrs) => {
                self.structs.entry(item.ident.to_string()).or_insert(item);
            }
            Item::Enum(item) if reads_files(&item.attrs) => {
                self.enums.entry(item.ident.to_string()).or_insert(item);
            }
            Item::Fn(item) => {
                if let Ok([Stmt::Expr(value, None)]) = <[Stmt; 1]>::try_from(item.block.stmts) {
                    let name = item.sig.ident.to_string();
                    self.functions.entry(name).or_insert(value);
                }
            }
            Item::Const(item) => {
                let constants = &mut self.constants;
                constants
                    .entry(item.ident.to_string())
                    .or_insert(*item.expr);
            }
            Item::Impl(item) => self.add_defaults(item),
            _ => {}
        }
    }

    /// Adds the fields of `impl Default`, whose function has one expression.
    fn add_defaults(&mut self, item: ItemImpl) {
        for item in item.items {
            let ImplItem::Fn(function) = item else {
                continue;
            };
            let is_default = function.sig.ident == "default";
            let Ok([Stmt::Expr(Expr::Struct(value), None)]) =
                <[Stmt; 1]>::try_from(function.block.stmts)
            else {
                continue;
            };
            let name = value.path.segments.last().expect("a path has a segment");
            let name = name.ident.to_string();
            for field in value.fields.into_iter().filter(|_| is_default) {
                if let Member::Named(key) = field.member {
                    let key = (name.clone(), key.to_string());
                    self.fields.insert(key, field.expr);
                }
            }
        }
    }

    /// Returns what a function without parameters returns, as a file has it.
    pub(super) fn result_of(&self, function: &str) -> Result<String> {
        let body = self.functions.get(function);
        let body =
            body.with_context(|| format!("{function} has more than a value: {ADD_A_DEFAULT}"))?;
        self.value(body)
    }

    fn value(&self, value: &Expr) -> Result<String> {
        match value {
            Expr::Lit(literal) => Ok(quoted(&literal.lit)),
            Expr::MethodCall(call) => self.value(&call.receiver),
            // `PathBuf::from(VALUE)`, `Spanned::new(0..0, VALUE)`
            Expr::Call(call) => self.value(call.args.last().context(ADD_A_DEFAULT)?),
            Expr::Binary(product) => {
                let factors = [&product.left, &product.right].map(|factor| self.value(factor));
                let [left, right] = factors;
                let product = left?.parse::<u64>()? * right?.parse::<u64>()?;
                Ok(product.to_string())
            }
            Expr::Macro(list) => Ok(format!("[{}]", list.mac.tokens)),
            Expr::Path(path) => {
                let name = path.path.segments.last().expect("a path has a segment");
                let constant = self.constants.get(&name.ident.to_string());
                self.value(constant.context(ADD_A_DEFAULT)?)
            }
            _ => bail!(ADD_A_DEFAULT),
        }
    }

    /// Returns the value of a field by `Default`, as a file has it.
    pub(super) fn default_of(
        &self,
        of: &ItemStruct,
        field: &Field,
        inner: &Inner,
    ) -> Result<String> {
        let name = field.ident.as_ref().map(ToString::to_string);
        let key = (of.ident.to_string(), name.unwrap_or_default());
        if let Some(value) = self.fields.get(&key) {
            return self.value(value);
        }
        if inner.many {
            return Ok("[]".to_owned());
        }
        Ok(match inner.name.as_str() {
            "bool" => "false".to_owned(),
            "u8" | "u16" | "u32" | "u64" | "usize" => "0".to_owned(),
            "BTreeSet" => "[]".to_owned(),
            name => {
                let item = self.enums.get(name).context(ADD_A_DEFAULT)?;
                let mut variants = item.variants.iter();
                let variant = variants.find(|variant| {
                    let mut attributes = variant.attrs.iter();
                    attributes.any(|attribute| attribute.path().is_ident("default"))
                });
                let variant = variant.context(ADD_A_DEFAULT)?;
                format!("{:?}", variant.ident.to_string().to_lowercase())
            }
        })
    }

    /// Returns the values of a type that has only names.
    pub(super) fn values(&self, name: &str) -> Option<Vec<String>> {
        let item = self.enums.get(name)?;
        let is_named = attribute(&item.attrs, "rename_all")? == "lowercase";
        let variants = item.variants.iter();
        let names =
            variants.map(|variant| format!("`{:?}`", variant.ident.to_string().to_lowercase()));
        is_named.then(|| names.collect())
    }

    /// Returns the content of each variant of a type with a tag, after the condition that the tag has its value.
    pub(super) fn tagged(&self, name: &str) -> Vec<(String, &Field)> {
        let item = self.enums.get(name);
        let Some((item, tag)) = item.and_then(|item| Some((item, attribute(&item.attrs, "tag")?)))
        else {
            return Vec::new();
        };
        let contents = item.variants.iter().filter_map(|variant| {
            let value = variant.ident.to_string().to_lowercase();
            let content = variant.fields.iter().next()?;
            Some((format!(" with `{tag} = {value:?}`"), content))
        });
        contents.collect()
    }
}

const ADD_A_DEFAULT: &str = "add `Default: TEXT.` to the end of the comment";

fn quoted(literal: &syn::Lit) -> String {
    match literal {
        syn::Lit::Str(text) => format!("{:?}", text.value()),
        syn::Lit::Int(number) => number.base10_digits().to_owned(),
        syn::Lit::Float(number) => number.base10_digits().trim_end_matches(".0").to_owned(),
        syn::Lit::Bool(value) => value.value.to_string(),
        _ => String::new(),
    }
}

fn reads_files(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let tokens = attribute
            .meta
            .require_list()
            .map(|list| list.tokens.to_string());
        attribute.path().is_ident("derive")
            && tokens.is_ok_and(|tokens| tokens.contains("Deserialize"))
    })
}

/// Returns the value of a key of serde's attributes.
pub(super) fn attribute(attributes: &[Attribute], key: &str) -> Option<String> {
    let mut found = None;
    serde(attributes, |name, value| {
        if name == key {
            found = value.or(found.take());
        }
    });
    found
}

/// Returns whether serde's attributes have a word without a value.
pub(super) fn has_word(attributes: &[Attribute], word: &str) -> bool {
    let mut has = false;
    serde(attributes, |name, value| {
        has |= name == word && value.is_none()
    });
    has
}

fn serde(attributes: &[Attribute], mut each: impl FnMut(&str, Option<String>)) {
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("serde"))
    {
        // Attributes that do not have this form are not of interest.
        let _ = attribute.parse_nested_meta(|meta| {
            let name = meta.path.get_ident().map(ToString::to_string);
            let value = match meta.value() {
                Ok(value) => Some(value.parse::<LitStr>()?.value()),
                Err(_) => None,
            };
            each(&name.unwrap_or_default(), value);
            Ok(())
        });
    }
}
