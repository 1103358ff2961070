//! Keys of maps: strings, and what is written as one (a character, the name of a variant). Numbers are refused; turned
//! into strings in silence, as `serde_json` does, `1` and `"1"` would be one key.

use serde::ser::{Impossible, Serialize, Serializer};

use super::write::{WriteFault, WriteRule};

/// Writes one key.
pub(super) struct Key;

macro_rules! no_keys {
    ($($method:ident($($kind:ty),*) -> $answer:ty;)+) => {
        $(fn $method(self, $(_: $kind),*) -> Result<$answer, WriteFault> {
            Err(WriteRule::KeyNotText.into())
        })+
    };
}

type NoKey = Impossible<String, WriteFault>;

impl Serializer for Key {
    type Ok = String;
    type Error = WriteFault;
    type SerializeSeq = NoKey;
    type SerializeTuple = NoKey;
    type SerializeTupleStruct = NoKey;
    type SerializeTupleVariant = NoKey;
    type SerializeMap = NoKey;
    type SerializeStruct = NoKey;
    type SerializeStructVariant = NoKey;

    fn serialize_str(self, key: &str) -> Result<String, WriteFault> {
        Ok(key.to_owned())
    }

    fn serialize_char(self, key: char) -> Result<String, WriteFault> {
        Ok(key.to_string())
    }

    fn serialize_unit_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
    ) -> Result<String, WriteFault> {
        Ok(variant.to_owned())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        key: &T,
    ) -> Result<String, WriteFault> {
        key.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<String, WriteFault> {
        Err(WriteRule::KeyNotText.into())
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _: &T,
    ) -> Result<String, WriteFault> {
        Err(WriteRule::KeyNotText.into())
    }

    no_keys! {
        serialize_bool(bool) -> String;
        serialize_i8(i8) -> String;
        serialize_i16(i16) -> String;
        serialize_i32(i32) -> String;
        serialize_i64(i64) -> String;
        serialize_i128(i128) -> String;
        serialize_u8(u8) -> String;
        serialize_u16(u16) -> String;
        serialize_u32(u32) -> String;
        serialize_u64(u64) -> String;
        serialize_u128(u128) -> String;
        serialize_f32(f32) -> String;
        serialize_f64(f64) -> String;
        serialize_bytes(&[u8]) -> String;
        serialize_none() -> String;
        serialize_unit() -> String;
        serialize_unit_struct(&'static str) -> String;
        serialize_seq(Option<usize>) -> NoKey;
        serialize_tuple(usize) -> NoKey;
        serialize_tuple_struct(&'static str, usize) -> NoKey;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> NoKey;
        serialize_map(Option<usize>) -> NoKey;
        serialize_struct(&'static str, usize) -> NoKey;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> NoKey;
    }
}
