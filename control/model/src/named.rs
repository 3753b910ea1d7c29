//! Input in which an object cannot be given as a list of its fields.
//!
//! Derived implementations of `Deserialize` also accept a list of an object's fields in the order
//! of their declaration, which is not part of the documented interface. Comparing the input with
//! what was parsed from it would take longer than the parsing, which counts where 10,000 nodes
//! report.

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use std::fmt;

/// Deserializes a value. A list in place of an object is an error, except for an enum that a field
/// of it selects (`#[serde(tag)]`), of which serde keeps the input until it knows the variant.
///
/// ```
/// use hawser_model::resource::Tenant;
///
/// let text = r#"["acme", "roads"]"#;
/// let error = hawser_model::named::<Tenant, _>(&mut serde_json::Deserializer::from_str(text));
/// assert!(error.unwrap_err().to_string().starts_with("invalid type: sequence"));
/// ```
///
/// # Errors
/// Returns the error of the deserializer, or one that says which object was expected.
pub fn named<'de, T, D>(input: D) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(Named(input))
}

/// Anything that passes input on to a visitor, with this rule for all objects in it.
pub(crate) struct Named<T>(pub(crate) T);

/// The visitor of a value, which may be a list or not.
struct Checked<V, const MAY_BE_LIST: bool>(V);

const fn any<V>(visitor: V) -> Checked<V, true> {
    Checked(visitor)
}

const fn object<V>(visitor: V) -> Checked<V, false> {
    Checked(visitor)
}

macro_rules! deserialize_any_value {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($argument,)* any(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Named<D> {
    type Error = D::Error;

    deserialize_any_value! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_i128() deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128()
        deserialize_f32() deserialize_f64() deserialize_char() deserialize_str() deserialize_string() deserialize_bytes()
        deserialize_byte_buf() deserialize_option() deserialize_unit() deserialize_seq() deserialize_map()
        deserialize_identifier() deserialize_ignored_any() deserialize_unit_struct(name: &'static str)
        deserialize_newtype_struct(name: &'static str) deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, object(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit_scalars {
    ($($method:ident: $type:ty),*) => {
        $(fn $method<E: de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>, const MAY_BE_LIST: bool> Visitor<'de> for Checked<V, MAY_BE_LIST> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit_scalars! {
        visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128, visit_f64: f64,
        visit_str: &str, visit_borrowed_str: &'de str, visit_string: String, visit_bytes: &[u8],
        visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>
    }

    fn visit_none<E: de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Named(value))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Named(value))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Named(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, value: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Named(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        match MAY_BE_LIST {
            true => self.0.visit_seq(Named(list)),
            false => Err(de::Error::invalid_type(Unexpected::Seq, &self)),
        }
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Named<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Named(input))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Named<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Named(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Named<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Named(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Named<A> {
    type Error = A::Error;
    type Variant = Named<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (name, variant) = self.0.variant_seed(seed)?;
        Ok((name, Named(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Named<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Named(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, any(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, object(visitor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::{Value, json};

    #[derive(Debug, PartialEq, Deserialize)]
    struct Pair {
        left: u8,
        right: Option<Point>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Point(u8, u8);

    #[derive(Debug, PartialEq, Deserialize)]
    enum Choice {
        Nothing,
        One(Pair),
        Fields { pairs: Vec<Pair> },
    }

    fn error<T: for<'de> Deserialize<'de> + fmt::Debug>(input: Value) -> String {
        named::<T, _>(input).unwrap_err().to_string()
    }

    #[test]
    fn objects_are_accepted_by_name_and_lists_as_lists() {
        let pair = |right| Pair { left: 1, right };
        let read = |input| named::<Choice, _>(input).unwrap();
        assert_eq!(read(json!("Nothing")), Choice::Nothing);
        let one = json!({ "One": { "left": 1, "right": [2, 3] } });
        assert_eq!(read(one), Choice::One(pair(Some(Point(2, 3)))));
        let fields = json!({ "Fields": { "pairs": [{ "left": 1, "right": null }] } });
        let pairs = vec![pair(None)];
        assert_eq!(read(fields), Choice::Fields { pairs });
    }

    #[test]
    fn a_list_in_place_of_an_object_is_an_error_at_any_depth() {
        let expected = "invalid type: sequence, expected struct Pair";
        assert_eq!(error::<Pair>(json!([1, null])), expected);
        assert_eq!(error::<Vec<Pair>>(json!([[1, null]])), expected);
        assert_eq!(error::<Choice>(json!({ "One": [1, null] })), expected);
        let nested = json!({ "Fields": { "pairs": [[1, null]] } });
        assert_eq!(error::<Choice>(nested), expected);
        let variant = error::<Choice>(json!({ "Fields": [[]] }));
        assert!(variant.starts_with("invalid type: sequence"), "{variant}");
    }
}
