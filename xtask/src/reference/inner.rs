//! The types of fields.

use syn::{GenericArgument, PathArguments, Type};

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
    /// Unwraps a type.
    pub(super) fn of(ty: &Type) -> Inner {
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
