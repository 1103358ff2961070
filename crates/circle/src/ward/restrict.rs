//! Which resources may a gate access?
//!
//! A `restrict` ward lists what is allowed: paths, hosts, methods. Two lists are not merged into one, because the
//! intersection of two sets of patterns is not a set of patterns. Both are kept, and every resource that a gate
//! accesses has to pass each of them.

use std::collections::{BTreeMap, BTreeSet};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde_json::{Map, Value, json};

/// A resource that a call accesses, as far as its arguments show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceAccess {
    /// A path below the gate's root that is read: as the entity wrote it, and normalized.
    Read { written: String, path: String },
    /// A path below the gate's root that is changed.
    Write { written: String, path: String },
    /// A host, with its port if the URL names one.
    Host { host: String, port: Option<u16> },
    /// An HTTP method.
    Method(String),
}

/// Everything the `restrict` wards of a circle allow. An empty restriction allows all.
#[derive(Debug, Clone, Default)]
pub struct Restriction {
    paths: BTreeMap<BTreeSet<String>, GlobSet>,
    hosts: BTreeSet<BTreeSet<String>>,
    /// The allowed methods in upper case.
    methods: Option<BTreeSet<String>>,
}

impl PartialEq for Restriction {
    /// Compares the texts only: a compiled pattern follows from its text.
    fn eq(&self, other: &Self) -> bool {
        self.paths.keys().eq(other.paths.keys()) && self.hosts == other.hosts && self.methods == other.methods
    }
}

impl Restriction {
    /// Allows only these paths. Each is a pattern such as `data/*.csv`; everything beneath a match is allowed too.
    pub fn paths(patterns: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, globset::Error> {
        let patterns: BTreeSet<String> = patterns.into_iter().map(Into::into).collect();
        let mut set = GlobSetBuilder::new();
        for pattern in &patterns {
            let pattern = pattern.trim_start_matches("./").trim_end_matches('/');
            let base = pattern.strip_suffix("/**").unwrap_or(pattern);
            for text in [pattern, base] {
                set.add(GlobBuilder::new(text).literal_separator(true).build()?);
            }
        }
        Ok(Self { paths: BTreeMap::from([(patterns, set.build()?)]), ..Self::default() })
    }

    /// Allows only these hosts: `example.com`, or `*.example.com` for its subdomains, either with `:port`.
    pub fn hosts(hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let hosts = hosts.into_iter().map(|host| plain(host.as_ref())).collect();
        Self { hosts: BTreeSet::from([hosts]), ..Self::default() }
    }

    /// Allows only these HTTP methods.
    pub fn methods(methods: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let methods = methods.into_iter().map(|method| method.as_ref().to_ascii_uppercase()).collect();
        Self { methods: Some(methods), ..Self::default() }
    }

    /// Returns the restriction that allows what both allow.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let methods = match (&self.methods, &other.methods) {
            (Some(one), Some(two)) => Some(one.intersection(two).cloned().collect()),
            (one, two) => one.clone().or_else(|| two.clone()),
        };
        let mut paths = self.paths.clone();
        paths.extend(other.paths.iter().map(|(patterns, set)| (patterns.clone(), set.clone())));
        Self { paths, hosts: self.hosts.union(&other.hosts).cloned().collect(), methods }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if a path below a root is allowed: every list names the path or a folder above it.
    pub fn allows_path(&self, path: &str) -> bool {
        let named = |set: &GlobSet| {
            let mut ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
            ends.push(path.len());
            ends.into_iter().any(|end| set.is_match(&path[..end]))
        };
        self.paths.values().all(named)
    }

    pub fn allows_host(&self, host: &str, port: Option<u16>) -> bool {
        self.hosts.iter().all(|list| list.iter().any(|pattern| host_fits(pattern, host, port)))
    }

    pub fn allows_method(&self, method: &str) -> bool {
        let method = method.to_ascii_uppercase();
        self.methods.as_ref().is_none_or(|methods| methods.contains(&method))
    }

    /// Returns the restriction in the form that records store; none if all is allowed. Several lists of one kind are a
    /// list of lists.
    pub(super) fn to_value(&self) -> Option<Value> {
        if self.is_empty() {
            return None;
        }
        let mut written = Map::new();
        if !self.paths.is_empty() {
            written.insert("paths".to_owned(), lists(self.paths.keys()));
        }
        if !self.hosts.is_empty() {
            written.insert("hosts".to_owned(), lists(self.hosts.iter()));
        }
        if let Some(methods) = &self.methods {
            written.insert("methods".to_owned(), json!(methods));
        }
        Some(Value::Object(written))
    }
}

fn lists<'a>(lists: impl Iterator<Item = &'a BTreeSet<String>>) -> Value {
    let lists: Vec<_> = lists.collect();
    match lists.as_slice() {
        [one] => json!(one),
        several => json!(several),
    }
}

/// Normalizes a host: lower case, no trailing dot.
fn plain(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Returns true if a host pattern matches this host and port.
pub(crate) fn host_fits(pattern: &str, host: &str, port: Option<u16>) -> bool {
    let host = plain(host);
    let (name, wanted) = match pattern.rsplit_once(':') {
        // An IPv6 address has colons of its own and is in brackets.
        Some((name, digits)) if !pattern.ends_with(']') => match digits.parse::<u16>() {
            Ok(wanted) => (name, Some(wanted)),
            Err(_) => (pattern, None),
        },
        Some(_) | None => (pattern, None),
    };
    if wanted.is_some() && wanted != port {
        return false;
    }
    match name.strip_prefix("*.") {
        Some(above) => host.strip_suffix(above).is_some_and(|below| below.ends_with('.') && below.len() > 1),
        None => host == plain(name),
    }
}
