//! The parts of a serializer that both writers share: they pass a value on to a few methods of the writer, of its
//! `Items` and of its `Entries`.

/// The types and the methods of a [`Serializer`](serde::Serializer) that only pass on. The writer has `integer`, `items`
/// and `entries`.
macro_rules! passing_on {
    ($ok:ty, $items:ty, $entries:ty) => {
        type Ok = $ok;
        type Error = WriteFault;
        type SerializeSeq = $items;
        type SerializeTuple = $items;
        type SerializeTupleStruct = $items;
        type SerializeTupleVariant = $items;
        type SerializeMap = $entries;
        type SerializeStruct = $entries;
        type SerializeStructVariant = $entries;

        $crate::json::frame::integers! {
            $ok;
            serialize_i8: i8,
            serialize_i16: i16,
            serialize_i32: i32,
            serialize_i64: i64,
            serialize_i128: i128,
            serialize_u8: u8,
            serialize_u16: u16,
            serialize_u32: u32,
            serialize_u64: u64,
            serialize_u128: u128,
        }

        fn serialize_f32(self, value: f32) -> Result<$ok, WriteFault> {
            self.serialize_f64(f64::from(value))
        }

        fn serialize_char(self, value: char) -> Result<$ok, WriteFault> {
            self.serialize_str(value.encode_utf8(&mut [0; 4]))
        }

        fn serialize_bytes(self, value: &[u8]) -> Result<$ok, WriteFault> {
            value.serialize(self)
        }

        fn serialize_none(self) -> Result<$ok, WriteFault> {
            self.serialize_unit()
        }

        fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<$ok, WriteFault> {
            value.serialize(self)
        }

        fn serialize_unit_struct(self, _name: &'static str) -> Result<$ok, WriteFault> {
            self.serialize_unit()
        }

        fn serialize_unit_variant(
            self,
            _name: &'static str,
            _index: u32,
            variant: &'static str,
        ) -> Result<$ok, WriteFault> {
            self.serialize_str(variant)
        }

        fn serialize_newtype_struct<T: Serialize + ?Sized>(
            self,
            _name: &'static str,
            value: &T,
        ) -> Result<$ok, WriteFault> {
            value.serialize(self)
        }

        fn serialize_seq(self, _length: Option<usize>) -> Result<$items, WriteFault> {
            self.items(None)
        }

        fn serialize_tuple(self, _length: usize) -> Result<$items, WriteFault> {
            self.items(None)
        }

        fn serialize_tuple_struct(self, _name: &'static str, _length: usize) -> Result<$items, WriteFault> {
            self.items(None)
        }

        fn serialize_tuple_variant(
            self,
            _name: &'static str,
            _index: u32,
            variant: &'static str,
            _length: usize,
        ) -> Result<$items, WriteFault> {
            self.items(Some(variant))
        }

        fn serialize_map(self, _length: Option<usize>) -> Result<$entries, WriteFault> {
            self.entries(None)
        }

        fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<$entries, WriteFault> {
            self.entries(None)
        }

        fn serialize_struct_variant(
            self,
            _name: &'static str,
            _index: u32,
            variant: &'static str,
            _length: usize,
        ) -> Result<$entries, WriteFault> {
            self.entries(Some(variant))
        }
    };
}

macro_rules! integers {
    ($ok:ty; $($method:ident: $number:ty,)+) => {
        $(fn $method(self, value: $number) -> Result<$ok, WriteFault> {
            self.integer(exactly(value)?)
        })+
    };
}

/// Implements the traits of a list, which has `push` and `finish`.
macro_rules! lists {
    ($ok:ty, $items:ty; $($kind:ident, $method:ident;)+) => {
        $(impl ser::$kind for $items {
            type Ok = $ok;
            type Error = WriteFault;

            fn $method<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), WriteFault> {
                self.push(item)
            }

            fn end(self) -> Result<$ok, WriteFault> {
                self.finish()
            }
        })+
    };
    ($ok:ty, $items:ty) => {
        $crate::json::frame::lists! {
            $ok, $items;
            SerializeSeq, serialize_element;
            SerializeTuple, serialize_element;
            SerializeTupleStruct, serialize_field;
            SerializeTupleVariant, serialize_field;
        }
    };
}

/// Implements the traits of a struct, whose entries have `field` and `finish`.
macro_rules! structs {
    ($ok:ty, $entries:ty; $($kind:ident;)+) => {
        $(impl ser::$kind for $entries {
            type Ok = $ok;
            type Error = WriteFault;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                entry: &T,
            ) -> Result<(), WriteFault> {
                self.field(key, entry)
            }

            fn end(self) -> Result<$ok, WriteFault> {
                self.finish()
            }
        })+
    };
    ($ok:ty, $entries:ty) => {
        $crate::json::frame::structs! { $ok, $entries; SerializeStruct; SerializeStructVariant; }
    };
}

pub(super) use {integers, lists, passing_on, structs};
