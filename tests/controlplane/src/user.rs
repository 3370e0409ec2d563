//! Who speaks to the API server.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// An identity that the API server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// `admin` in `system:masters`, by a static token.
    Admin,
    /// A node's kubelet, `system:node:NAME` in `system:nodes`, by a client
    /// certificate: what the Node authorizer and NodeRestriction judge.
    Node(String),
    /// A ServiceAccount, by a token from the TokenRequest API. It is created,
    /// with its namespace, if it is missing.
    ServiceAccount {
        /// The namespace it lives in.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl User {
    /// The kubelet of the node `name`.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self::Node(name.to_owned())
    }

    /// The ServiceAccount `name` in `namespace`.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self::ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The name by which the API server knows it, as in [`AuditEvent::user`](crate::AuditEvent::user).
    #[must_use]
    pub fn username(&self) -> String {
        match self {
            Self::Admin => String::from("admin"),
            Self::Node(name) => format!("system:node:{name}"),
            Self::ServiceAccount { namespace, name } => {
                format!("system:serviceaccount:{namespace}:{name}")
            }
        }
    }

    /// The name of its kubeconfig and credential files.
    pub(crate) fn file_stem(&self) -> String {
        match self {
            Self::Admin => String::from("admin"),
            Self::Node(name) => format!("node-{name}"),
            Self::ServiceAccount { namespace, name } => format!("sa-{namespace}-{name}"),
        }
    }
}

/// How a user proves who it is.
pub(crate) enum Proof<'a> {
    Token(&'a str),
    Certificate {
        certificate: &'a Path,
        key: &'a Path,
    },
}

/// A kubeconfig, in JSON, which every reader of YAML takes.
pub(crate) fn kubeconfig(server: &str, authority: &Path, proof: &Proof<'_>) -> Result<String> {
    let user: Value = match proof {
        Proof::Token(token) => json!({ "token": token }),
        Proof::Certificate { certificate, key } => {
            json!({ "client-certificate": certificate, "client-key": key })
        }
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "rig",
        "contexts": [{ "name": "rig", "context": { "cluster": "rig", "user": "rig" } }],
        "clusters": [{
            "name": "rig",
            "cluster": { "server": server, "certificate-authority": authority },
        }],
        "users": [{ "name": "rig", "user": user }],
    });
    serde_json::to_string_pretty(&config).context("cannot write a kubeconfig")
}
