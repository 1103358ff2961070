//! Objects that are stored outside the store, each at its own address: a path, or the URL of a bucket.
//!
//! An object is written once, atomically, and never overwrites another one. A client is opened for every object:
//! objects are few and long, and a client for the folder of one process is of no use to another one.

use std::io;
use std::path::{Path, PathBuf};

use object_store::local::LocalFileSystem;
use object_store::path::Path as Place;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use url::Url;

/// The kinds of buckets that this build can reach.
pub(crate) const BUCKETS: &[&str] = &[
    #[cfg(feature = "s3")]
    "s3",
    #[cfg(feature = "gcs")]
    "gs",
];

/// The reason why an address cannot be the base for objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaseFault {
    #[error("it is neither a folder nor the URL of a bucket")]
    Unknown,
    #[error("this program was built without the feature that reaches {0}:// addresses")]
    NotBuilt(String),
}

/// The common prefix of object addresses, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base(String);

impl Base {
    /// Creates the base for a folder, which need not exist yet. The addresses in it are absolute, so they are valid
    /// from any working directory.
    pub(crate) fn folder(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self(path.display().to_string())
    }

    /// Parses a folder's path or a bucket's URL.
    pub(crate) fn parse(text: &str) -> Result<Self, BaseFault> {
        let Some((scheme, _)) = text.split_once("://") else {
            return if text.is_empty() { Err(BaseFault::Unknown) } else { Ok(Self::folder(Path::new(text))) };
        };
        let url = Url::parse(text).map_err(|_| BaseFault::Unknown)?;
        match scheme {
            "file" => url.to_file_path().map(|path| Self::folder(&path)).map_err(|()| BaseFault::Unknown),
            "s3" | "gs" if url.host_str().is_none_or(str::is_empty) => Err(BaseFault::Unknown),
            "s3" | "gs" if BUCKETS.contains(&scheme) => Ok(Self(text.trim_end_matches('/').to_owned())),
            "s3" | "gs" => Err(BaseFault::NotBuilt(scheme.to_owned())),
            _ => Err(BaseFault::Unknown),
        }
    }

    /// Returns the address of the object with these digits for a name.
    pub(crate) fn address(&self, digits: &str) -> String {
        format!("{}/{}/{digits}.json", self.0, &digits[..2])
    }
}

/// Opens the object store for this address, and returns it with the path of the object in it.
fn open_store(address: &str) -> Result<(Box<dyn ObjectStore>, Place), Error> {
    if address.contains("://") {
        // A crypto provider that was installed earlier stays.
        #[cfg(any(feature = "s3", feature = "gcs"))]
        let _ = rustls::crypto::ring::default_provider().install_default();
        let unread = |source: url::ParseError| Error::Generic { store: "an address", source: source.into() };
        let url = Url::parse(address).map_err(unread)?;
        // Only the variables that the provider's own tools read.
        let given = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let given = given.filter(|(name, _)| name.starts_with("AWS_") || name.starts_with("GOOGLE_"));
        let given = given.filter_map(|(name, value)| Some((name.to_ascii_lowercase(), value.into_string().ok()?)));
        return object_store::parse_url_opts(&url, given);
    }
    let place = Place::from_absolute_path(address)?;
    Ok((Box::new(LocalFileSystem::new().with_fsync(true)), place))
}

/// Returns true if the error means that there is no object at the address.
pub(crate) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. })
}

/// Reads all bytes of an object.
pub(crate) async fn read(address: &str) -> Result<Vec<u8>, Error> {
    let (store, place) = open_store(address)?;
    Ok(store.get(&place).await?.bytes().await?.to_vec())
}

/// Writes an object, if there is none at this address yet. An existing object is left unchanged: the caller reads it
/// back and checks whether it is the same.
pub(crate) async fn create(address: &str, bytes: Vec<u8>) -> Result<(), Error> {
    if !address.contains("://") {
        is_there(Path::new(address))?;
    }
    let (store, place) = open_store(address)?;
    let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    match store.put_opts(&place, PutPayload::from(bytes), create).await {
        Ok(_) | Err(Error::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes an object; a missing object is a success.
pub(crate) async fn delete(address: &str) -> Result<(), Error> {
    let (store, place) = open_store(address)?;
    match store.delete(&place).await {
        Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks that the folder exists, or can be created in an existing parent: the path of a disk that is not mounted is
/// not created.
fn is_there(file: &Path) -> Result<(), Error> {
    let base: Option<PathBuf> = file.parent().and_then(Path::parent).map(Path::to_owned);
    match base {
        Some(base) if base.is_dir() || std::fs::create_dir(&base).is_ok() => Ok(()),
        Some(_) | None => {
            let source = io::Error::from(io::ErrorKind::NotFound);
            Err(Error::NotFound { path: file.display().to_string(), source: source.into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_for_objects_is_a_folder_or_a_bucket_that_this_build_reaches() {
        let folder = Base::parse("/var/traces").expect("a folder");
        assert_eq!(folder.address("ab12"), "/var/traces/ab/ab12.json");
        assert_eq!(Base::parse("file:///var/traces").expect("a folder"), folder);
        let relative = Base::parse("traces").expect("a folder").address("ab");
        assert!(Path::new(&relative).is_absolute(), "{relative}");
        for none in ["", "ftp://host/traces", "s3://", "s3:///traces"] {
            assert_eq!(Base::parse(none), Err(BaseFault::Unknown), "{none}");
        }
        for bucket in ["s3://bucket/traces/", "gs://bucket/traces"] {
            let scheme = &bucket[..2];
            match Base::parse(bucket) {
                Ok(base) => {
                    assert!(BUCKETS.contains(&scheme));
                    assert_eq!(base.address("ab12"), format!("{scheme}://bucket/traces/ab/ab12.json"));
                }
                Err(fault) => {
                    assert!(!BUCKETS.contains(&scheme));
                    assert_eq!(fault, BaseFault::NotBuilt(scheme.to_owned()));
                }
            }
        }
    }
}
