//! The request log: what an audit log would tell, for tests to count.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What a request wants done; the verbs of Kubernetes' authorization and audit, not of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read a collection.
    List,
    /// Follow the changes of a collection.
    Watch,
    /// POST an object.
    Create,
    /// PUT an object.
    Update,
    /// PATCH an object.
    Patch,
    /// DELETE an object.
    Delete,
    /// DELETE a collection; the stand-in refuses it.
    DeleteCollection,
}

impl Verb {
    /// Whether the verb changes something.
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }

    /// The verb's name in RBAC rules and audit logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One answered request. A watch is answered when its headers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// What it wanted done.
    pub verb: Verb,
    /// The plural resource, as in the path: `nodes`, `leases`, also one that is not served.
    pub resource: String,
    /// `status`, if the request was for it.
    pub subresource: Option<String>,
    /// The namespace of the path.
    pub namespace: Option<String>,
    /// The name of the path; none for collections and creations.
    pub name: Option<String>,
    /// The client's `User-Agent`, empty if it sent none.
    pub user_agent: String,
    /// The status code of the answer; 0 while the request is still on its way, as a [`Matcher`](crate::Matcher)
    /// and [`Hold::reached`](crate::Hold::reached) see it.
    pub code: u16,
}

impl fmt::Display for RequestRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        for part in [&self.subresource, &self.namespace, &self.name]
            .into_iter()
            .flatten()
        {
            write!(f, "/{part}")?;
        }
        write!(f, " by {:?}: {}", self.user_agent, self.code)
    }
}

/// The newest requests, up to a bound.
pub(crate) struct RequestLog {
    inner: Mutex<Inner>,
    bound: usize,
}

struct Inner {
    records: VecDeque<RequestRecord>,
    dropped: u64,
}

impl RequestLog {
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                records: VecDeque::new(),
                dropped: 0,
            }),
            bound,
        }
    }

    pub(crate) fn push(&self, record: RequestRecord) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.records.push_back(record);
        while inner.records.len() > self.bound {
            inner.records.pop_front();
            inner.dropped += 1;
        }
    }

    pub(crate) fn records(&self) -> Vec<RequestRecord> {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .records
            .iter()
            .cloned()
            .collect()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .dropped
    }
}
