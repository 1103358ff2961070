//! Keys of maps: strings, and values that serialize as one (a character, the name of a variant). Numbers are refused.
//! If they became strings silently, as in `serde_json`, `1` and `"1"` would be the same key.

use serde::ser::{Impossible, Serialize, Serializer};

use super::write::{WriteFault, WriteRule};

/// Appends one key to a text.
pub(super) struct Key<'t>(pub(super) &'t mut String);

macro_rules! no_keys {
    ($($method:ident($($kind:ty),*) -> $answer:ty;)+) => {
        $(fn $method(self, $(_: $kind),*) -> Result<$answer, WriteFault> {
            Err(WriteRule::KeyNotText.into())
        })+
    };
}

type NoKey = Impossible<(), WriteFault>;

impl Serializer for Key<'_> {
    type Ok = ();
    type Error = WriteFault;
    type SerializeSeq = NoKey;
    type SerializeTuple = NoKey;
    type SerializeTupleStruct = NoKey;
    type SerializeTupleVariant = NoKey;
    type SerializeMap = NoKey;
    type SerializeStruct = NoKey;
    type SerializeStructVariant = NoKey;

    fn serialize_str(self, key: &str) -> Result<(), WriteFault> {
        self.0.push_str(key);
        Ok(())
    }

    fn serialize_char(self, key: char) -> Result<(), WriteFault> {
        self.0.push(key);
        Ok(())
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Result<(), WriteFault> {
        self.0.push_str(variant);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, key: &T) -> Result<(), WriteFault> {
        key.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<(), WriteFault> {
        Err(WriteRule::KeyNotText.into())
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _: &T,
    ) -> Result<(), WriteFault> {
        Err(WriteRule::KeyNotText.into())
    }

    no_keys! {
        serialize_bool(bool) -> ();
        serialize_i8(i8) -> ();
        serialize_i16(i16) -> ();
        serialize_i32(i32) -> ();
        serialize_i64(i64) -> ();
        serialize_i128(i128) -> ();
        serialize_u8(u8) -> ();
        serialize_u16(u16) -> ();
        serialize_u32(u32) -> ();
        serialize_u64(u64) -> ();
        serialize_u128(u128) -> ();
        serialize_f32(f32) -> ();
        serialize_f64(f64) -> ();
        serialize_bytes(&[u8]) -> ();
        serialize_none() -> ();
        serialize_unit() -> ();
        serialize_unit_struct(&'static str) -> ();
        serialize_seq(Option<usize>) -> NoKey;
        serialize_tuple(usize) -> NoKey;
        serialize_tuple_struct(&'static str, usize) -> NoKey;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> NoKey;
        serialize_map(Option<usize>) -> NoKey;
        serialize_struct(&'static str, usize) -> NoKey;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> NoKey;
    }
}
