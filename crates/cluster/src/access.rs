//! The check, at the start, of what RBAC lets us do.
//!
//! Every user may ask about himself (`SelfSubjectAccessReview`, by `system:basic-user`), so a
//! missing verb is named before it is needed at three in the morning.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};

use crate::fault::{self, Fault};
use crate::leases::NODE_LEASE_NAMESPACE;
use crate::mode::Mode;

/// Longest wait for one review.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Something that we need to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// The verb.
    pub verb: &'static str,
    /// The API group; empty for core.
    pub group: &'static str,
    /// The resource.
    pub resource: &'static str,
    /// The subresource; empty for none.
    pub subresource: &'static str,
    /// The namespace; `None` for all, or for resources without one.
    pub namespace: Option<String>,
    /// The one object; `None` for all.
    pub name: Option<String>,
}

impl Access {
    fn cluster(verb: &'static str, resource: &'static str, subresource: &'static str) -> Self {
        Self {
            verb,
            group: "",
            resource,
            subresource,
            namespace: None,
            name: None,
        }
    }

    fn lease(verb: &'static str, namespace: &str, name: Option<&str>) -> Self {
        Self {
            verb,
            group: "coordination.k8s.io",
            resource: "leases",
            subresource: "",
            namespace: Some(namespace.to_owned()),
            name: name.map(str::to_owned),
        }
    }

    async fn is_granted(&self, client: &kube::Client) -> Result<bool, Fault> {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: text(self.verb),
                    group: text(self.group),
                    resource: text(self.resource),
                    subresource: text(self.subresource),
                    namespace: self.namespace.clone(),
                    name: self.name.clone(),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
        let answer = fault::timed(TIMEOUT, api.create(&PostParams::default(), &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

/// What the edge needs in a mode. Observe needs no patch, so it may run without the right to.
#[must_use]
pub fn needed(mode: Mode, election_namespace: &str, election_lease: &str) -> Vec<Access> {
    let mut needed = vec![
        Access::cluster("get", "nodes", ""),
        Access::cluster("list", "nodes", ""),
        Access::cluster("watch", "nodes", ""),
        Access::lease("get", NODE_LEASE_NAMESPACE, None),
        Access::lease("get", election_namespace, Some(election_lease)),
        Access::lease("update", election_namespace, Some(election_lease)),
        // RBAC cannot confine a create to a name: the name is not known when it decides.
        Access::lease("create", election_namespace, None),
        Access {
            group: "events.k8s.io",
            ..Access::cluster("create", "events", "")
        },
    ];
    if mode == Mode::Enforce {
        needed.extend([
            Access::cluster("patch", "nodes", "status"),
            Access::cluster("get", "pods", ""),
            Access::cluster("list", "pods", ""),
            Access::cluster("patch", "pods", "status"),
        ]);
    }
    needed
}

/// Which of these we may not do.
///
/// # Errors
/// If the API server gives no answer to one of the questions.
pub async fn missing(client: &kube::Client, needed: Vec<Access>) -> Result<Vec<Access>, Fault> {
    let mut missing = Vec::new();
    for access in needed {
        if !access.is_granted(client).await? {
            missing.push(access);
        }
    }
    Ok(missing)
}
