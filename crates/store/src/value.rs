//! A column value, in either dialect.

use cantrip_canon::{Hash, Id, Kind, Timestamp};
use cantrip_loom::{Damage, Error};

/// One value of a row, or of a query parameter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    Null,
    Int(i64),
    Text(String),
    Blob(Vec<u8>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<u64> for Value {
    /// Converts positions, epochs and counts; none of them comes near the maximum of an integer column.
    fn from(value: u64) -> Self {
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(i64::from(value))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Blob(value)
    }
}

impl<K: Kind> From<Id<K>> for Value {
    fn from(id: Id<K>) -> Self {
        Self::Blob(id.to_bytes().to_vec())
    }
}

impl From<Hash> for Value {
    fn from(hash: Hash) -> Self {
        Self::Blob(hash.as_bytes().to_vec())
    }
}

impl From<Timestamp> for Value {
    fn from(at: Timestamp) -> Self {
        Self::Int(at.unix_millis())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The values of the parameters of a query.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::value::Value::from($value)),*] };
}
pub(crate) use values;

/// One row of a result. Its columns are read in order; a value of an unexpected type is damage.
#[derive(Debug)]
pub(crate) struct Row(std::vec::IntoIter<Value>);

/// Returns the error for a column of an unexpected type.
fn odd() -> Error {
    Error::Damaged(Damage {
        run: None,
        seq: None,
        line: None,
        what: "a column of the store holds another kind of value",
    })
}

impl Row {
    pub(crate) fn new(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }

    /// Returns the columns that were not read yet.
    pub(crate) fn into_values(self) -> Vec<Value> {
        self.0.collect()
    }

    fn next(&mut self) -> Result<Value, Error> {
        self.0.next().ok_or_else(odd)
    }

    pub(crate) fn int(&mut self) -> Result<i64, Error> {
        self.int_or_null()?.ok_or_else(odd)
    }

    pub(crate) fn int_or_null(&mut self) -> Result<Option<i64>, Error> {
        match self.next()? {
            Value::Null => Ok(None),
            Value::Int(value) => Ok(Some(value)),
            Value::Text(_) | Value::Blob(_) => Err(odd()),
        }
    }

    pub(crate) fn count(&mut self) -> Result<u64, Error> {
        u64::try_from(self.int()?).map_err(|_| odd())
    }

    pub(crate) fn count_or_null(&mut self) -> Result<Option<u64>, Error> {
        self.int_or_null()?.map(|value| u64::try_from(value).map_err(|_| odd())).transpose()
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        Ok(self.int()? != 0)
    }

    pub(crate) fn text(&mut self) -> Result<String, Error> {
        self.text_or_null()?.ok_or_else(odd)
    }

    pub(crate) fn text_or_null(&mut self) -> Result<Option<String>, Error> {
        match self.next()? {
            Value::Null => Ok(None),
            Value::Text(value) => Ok(Some(value)),
            Value::Int(_) | Value::Blob(_) => Err(odd()),
        }
    }

    pub(crate) fn blob(&mut self) -> Result<Vec<u8>, Error> {
        self.blob_or_null()?.ok_or_else(odd)
    }

    pub(crate) fn blob_or_null(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match self.next()? {
            Value::Null => Ok(None),
            Value::Blob(value) => Ok(Some(value)),
            Value::Int(_) | Value::Text(_) => Err(odd()),
        }
    }

    pub(crate) fn id<K: Kind>(&mut self) -> Result<Id<K>, Error> {
        self.id_or_null()?.ok_or_else(odd)
    }

    pub(crate) fn id_or_null<K: Kind>(&mut self) -> Result<Option<Id<K>>, Error> {
        let bytes = self.blob_or_null()?;
        bytes.map(|bytes| Ok(Id::from_bytes(bytes.try_into().map_err(|_| odd())?))).transpose()
    }

    pub(crate) fn hash(&mut self) -> Result<Hash, Error> {
        Ok(Hash::from_bytes(self.blob()?.try_into().map_err(|_| odd())?))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, Error> {
        self.time_or_null()?.ok_or_else(odd)
    }

    pub(crate) fn time_or_null(&mut self) -> Result<Option<Timestamp>, Error> {
        self.int_or_null()?.map(|millis| Timestamp::from_unix_millis(millis).map_err(|_| odd())).transpose()
    }
}
