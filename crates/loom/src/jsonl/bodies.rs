//! Bodies as files, each named by its hash. A body is written to a temporary file, flushed and then renamed, so that a
//! name never refers to half a body.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantrip_canon::{Hash, bytes_hash};

use crate::{Bodies, Body, Error};

#[derive(Debug, Clone)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    fn path(&self, hash: &Hash) -> PathBuf {
        self.0.join(hash.hex(2)).join(hash.hex(64))
    }

    pub(super) fn has(&self, hash: &Hash) -> bool {
        self.path(hash).is_file()
    }

    /// Stores a body if it is not stored yet, and makes it durable.
    pub(super) fn store(&self, body: &Body) -> Result<(), Error> {
        let path = self.path(&body.hash());
        if path.is_file() {
            return Ok(());
        }
        let failed = |doing| {
            let path = path.clone();
            move |source: io::Error| Error::Io { doing, path, source }
        };
        let folder = self.0.join(body.hash().hex(2));
        let new_folder = !folder.is_dir();
        fs::create_dir_all(&folder).map_err(failed("make the folder of"))?;
        let beside = path.with_extension("new");
        let mut file = File::create(&beside).map_err(failed("create"))?;
        file.write_all(body.bytes()).and_then(|()| file.sync_all()).map_err(failed("write"))?;
        fs::rename(&beside, &path).map_err(failed("name"))?;
        flush_folder(&folder).map_err(failed("flush the folder of"))?;
        if new_folder {
            flush_folder(&self.0).map_err(failed("flush the folder of"))?;
        }
        Ok(())
    }
}

/// Makes the names in a folder durable.
pub(super) fn flush_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

impl Bodies for Folder {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        let bytes = match fs::read(self.path(hash)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Error::BodyAltered(*hash)),
            Err(source) => return Err(Error::Io { doing: "read", path: self.path(hash), source }),
        };
        if bytes_hash(&bytes) == *hash { Ok(bytes.into()) } else { Err(Error::BodyAltered(*hash)) }
    }
}
