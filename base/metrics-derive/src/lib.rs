//! Derives `hawser_metrics::Metrics`, which describes the attributes.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Data, DeriveInput, Error, Expr, Ident, Lit, LitStr, Meta, Result, Token};

/// Derives `hawser_metrics::Metrics`.
#[proc_macro_derive(Metrics, attributes(counter, gauge, metrics, label))]
pub fn metrics(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    let derived = derive(&input).unwrap_or_else(Error::into_compile_error);
    derived.into()
}

fn derive(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(input, "only a struct has metrics"));
    };
    let mut body = statements(&input.attrs, &quote!(*self))?;
    for field in &data.fields {
        let name = &field.ident;
        body.extend(statements(&field.attrs, &quote!(self.#name))?);
    }
    let name = &input.ident;
    Ok(quote! {
        impl ::hawser_metrics::Metrics for #name {
            fn write(
                &self,
                page: &mut ::hawser_metrics::Page,
                _: Option<::hawser_metrics::Family>,
                _: &[&'static str],
            ) {
                let depth = page.depth();
                #body
                page.leave(depth);
            }
        }
    })
}

/// Returns the statements that write `value` as its attributes say.
fn statements(attributes: &[Attribute], value: &TokenStream) -> Result<TokenStream> {
    let mut statements = TokenStream::new();
    for attribute in attributes {
        let kind = match attribute.path().get_ident() {
            Some(kind) if is_ours(kind) => kind,
            _ => continue,
        };
        let Arguments { names, help, of } = match attribute.meta {
            Meta::Path(_) => Arguments::default(),
            _ => attribute.parse_args()?,
        };
        let value = match of {
            Some(of) => quote!(&::hawser_metrics::apply(&#value, #of)),
            None => quote!(&#value),
        };
        let help = help.unwrap_or_else(|| first_paragraph(attributes));
        let (name, labels) = (names.first(), names.get(1..));
        let labels = labels.unwrap_or_default();
        statements.extend(match kind.to_string().as_str() {
            "label" => quote!(page.enter(#name, #value);),
            "metrics" => quote! {
                ::hawser_metrics::Metrics::write(#value, page, None, &[#(#names),*]);
            },
            _ => quote! {
                let family = ::hawser_metrics::Family::#kind(#name, #help);
                ::hawser_metrics::Metrics::write(#value, page, Some(family), &[#(#labels),*]);
            },
        });
    }
    Ok(statements)
}

fn is_ours(kind: &Ident) -> bool {
    ["counter", "gauge", "metrics", "label"]
        .iter()
        .any(|ours| kind == ours)
}

/// The text between the parentheses of an attribute: `"name", "label", help = "text", of = function`.
#[derive(Default)]
struct Arguments {
    names: Vec<LitStr>,
    help: Option<String>,
    of: Option<TokenStream>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut arguments = Arguments::default();
        while !input.is_empty() {
            if input.peek(LitStr) {
                arguments.names.push(input.parse()?);
            } else {
                let key: Ident = input.parse()?;
                input.parse::<Token![=]>()?;
                if key == "help" {
                    arguments.help = Some(input.parse::<LitStr>()?.value());
                } else if key == "of" {
                    arguments.of = Some(input.parse()?);
                } else {
                    return Err(Error::new_spanned(key, "neither `help` nor `of`"));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(arguments)
    }
}

/// Returns the first paragraph of a comment, without the full stop.
fn first_paragraph(attributes: &[Attribute]) -> String {
    let lines = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
                Expr::Lit(text) => match &text.lit {
                    Lit::Str(text) => Some(text.value().trim().to_owned()),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        });
    let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    lines.join(" ").trim_end_matches('.').to_owned()
}
