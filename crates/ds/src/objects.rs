//! Objects that are stored outside the store, each at its own address: a path, or the URL of a bucket.
//!
//! An object is written once, atomically, and never overwrites another one. A client is opened for every object:
//! objects are few and long, and a client for the folder of one process is of no use to another one.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

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

/// The reason why an object could not be read, written or deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    #[error("there is nothing at {0}")]
    Missing(String),
    #[error("{address}: {cause}")]
    Failed { address: String, cause: String },
}

impl ObjectError {
    fn of_file(file: &Path, error: &io::Error) -> Self {
        let address = file.display().to_string();
        if error.kind() == io::ErrorKind::NotFound {
            Self::Missing(address)
        } else {
            Self::Failed { address, cause: error.to_string() }
        }
    }
}

/// Returns true if the error means that there is no object at the address.
pub(crate) fn is_missing(error: &ObjectError) -> bool {
    matches!(error, ObjectError::Missing(_))
}

/// Reads all bytes of an object.
pub(crate) async fn read(address: &str) -> Result<Vec<u8>, ObjectError> {
    if address.contains("://") {
        return buckets::read(address).await;
    }
    with_file(address, |file| fs::read(file)).await
}

/// Writes an object, if there is none at this address yet. An existing object is left unchanged: the caller reads it
/// back and checks whether it is the same.
pub(crate) async fn create(address: &str, bytes: Vec<u8>) -> Result<(), ObjectError> {
    if address.contains("://") {
        return buckets::create(address, bytes).await;
    }
    with_file(address, move |file| create_file(file, &bytes)).await
}

/// Deletes an object; a missing object is a success.
pub(crate) async fn delete(address: &str) -> Result<(), ObjectError> {
    if address.contains("://") {
        return buckets::delete(address).await;
    }
    match with_file(address, |file| fs::remove_file(file)).await {
        Ok(()) | Err(ObjectError::Missing(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Runs work on a file beside the asynchronous tasks, because a disk can take its time.
async fn with_file<T: Send + 'static>(
    address: &str,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, ObjectError> {
    let file = PathBuf::from(address);
    let done = tokio::task::spawn_blocking(move || work(&file).map_err(|error| ObjectError::of_file(&file, &error)));
    done.await
        .unwrap_or_else(|error| Err(ObjectError::Failed { address: address.to_owned(), cause: error.to_string() }))
}

/// Writes a file under a name of its own and then links it to its address. So no reader finds half a file, and a file
/// that is there stays: a link never replaces one.
fn create_file(file: &Path, bytes: &[u8]) -> io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    check_base(file)?;
    let folder = file.parent().ok_or(io::ErrorKind::NotFound)?;
    fs::create_dir_all(folder)?;
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let unlinked = folder.join(format!(".{}-{number}.part", std::process::id()));
    let linked = write_new(&unlinked, bytes).and_then(|()| fs::hard_link(&unlinked, file));
    let _ = fs::remove_file(&unlinked);
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && file.exists() => Ok(()),
        Ok(()) => fs::File::open(folder)?.sync_all(),
        Err(error) => Err(error),
    }
}

fn write_new(file: &Path, bytes: &[u8]) -> io::Result<()> {
    // A part of a process with the same number that died belongs to nobody.
    let mut opened = fs::OpenOptions::new().write(true).create(true).truncate(true).open(file)?;
    opened.write_all(bytes)?;
    opened.sync_all()
}

/// Checks that the folder exists, or can be created in an existing parent: the path of a disk that is not mounted is
/// not created.
fn check_base(file: &Path) -> io::Result<()> {
    match file.parent().and_then(Path::parent) {
        Some(base) if base.is_dir() || fs::create_dir(base).is_ok() => Ok(()),
        Some(_) | None => Err(io::ErrorKind::NotFound.into()),
    }
}

#[cfg(any(feature = "s3", feature = "gcs"))]
mod buckets {
    //! Objects in buckets.

    use object_store::path::Path as Place;
    use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
    use url::Url;

    use super::ObjectError;

    impl From<Error> for ObjectError {
        fn from(error: Error) -> Self {
            match error {
                Error::NotFound { path, .. } => Self::Missing(path),
                error => Self::Failed { address: "the bucket".to_owned(), cause: error.to_string() },
            }
        }
    }

    /// Opens the object store for this address, and returns it with the path of the object in it.
    fn open_store(address: &str) -> Result<(Box<dyn ObjectStore>, Place), Error> {
        // A crypto provider that was installed earlier stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let unread = |source: url::ParseError| Error::Generic { store: "an address", source: source.into() };
        let url = Url::parse(address).map_err(unread)?;
        // Only the variables that the provider's own tools read.
        let given = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let given = given.filter(|(name, _)| name.starts_with("AWS_") || name.starts_with("GOOGLE_"));
        let given = given.filter_map(|(name, value)| Some((name.to_ascii_lowercase(), value.into_string().ok()?)));
        object_store::parse_url_opts(&url, given)
    }

    pub(super) async fn read(address: &str) -> Result<Vec<u8>, ObjectError> {
        let (store, place) = open_store(address)?;
        Ok(store.get(&place).await?.bytes().await?.to_vec())
    }

    pub(super) async fn create(address: &str, bytes: Vec<u8>) -> Result<(), ObjectError> {
        let (store, place) = open_store(address)?;
        let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match store.put_opts(&place, PutPayload::from(bytes), create).await {
            Ok(_) | Err(Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn delete(address: &str) -> Result<(), ObjectError> {
        let (store, place) = open_store(address)?;
        match store.delete(&place).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(not(any(feature = "s3", feature = "gcs")))]
mod buckets {
    //! Buckets in a build that reaches none. [`Base::parse`](super::Base::parse) refuses their addresses, but a store
    //! that another build wrote can name one.

    use super::ObjectError;

    fn not_built<T>(address: &str) -> Result<T, ObjectError> {
        let cause = "this program was built without the feature that reaches buckets".to_owned();
        Err(ObjectError::Failed { address: address.to_owned(), cause })
    }

    pub(super) async fn read(address: &str) -> Result<Vec<u8>, ObjectError> {
        not_built(address)
    }

    pub(super) async fn create(address: &str, _: Vec<u8>) -> Result<(), ObjectError> {
        not_built(address)
    }

    pub(super) async fn delete(address: &str) -> Result<(), ObjectError> {
        not_built(address)
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

    #[tokio::test]
    async fn an_object_is_written_once_and_its_folder_holds_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = Base::folder(&folder.path().join("traces")).address("ab12");
        assert!(is_missing(&read(&address).await.expect_err("nothing is there yet")));
        create(&address, b"first".to_vec()).await.expect("it is written");
        create(&address, b"second".to_vec()).await.expect("the first one stays");
        assert_eq!(read(&address).await.expect("it is there"), b"first");
        let beside: Vec<_> = fs::read_dir(folder.path().join("traces/ab")).expect("a folder").collect();
        assert_eq!(beside.len(), 1, "{beside:?}");
        delete(&address).await.expect("it is deleted");
        delete(&address).await.expect("deleting nothing is a success");
        assert!(is_missing(&read(&address).await.expect_err("it is gone")));
        let unmounted = Base::folder(&folder.path().join("disk/traces")).address("ab12");
        assert!(is_missing(&create(&unmounted, Vec::new()).await.expect_err("no disk is mounted there")));
        assert!(!folder.path().join("disk").exists());
    }
}
