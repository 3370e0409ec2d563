//! What is served: the resources, the two spellings of Events, and the way from a path to them.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use k8s_openapi::api::events::v1::Event as EventsV1;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A resource that the stand-in stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    Nodes,
    Pods,
    Events,
    Leases,
    Namespaces,
}

impl Resource {
    pub(crate) const ALL: [Self; 5] = [
        Self::Nodes,
        Self::Pods,
        Self::Events,
        Self::Leases,
        Self::Namespaces,
    ];

    pub(crate) fn is_namespaced(self) -> bool {
        matches!(self, Self::Pods | Self::Events | Self::Leases)
    }

    pub(crate) fn has_status(self) -> bool {
        matches!(self, Self::Nodes | Self::Pods | Self::Namespaces)
    }

    /// Whether a PUT without a resource version is taken as "whatever is there now" (`AllowUnconditionalUpdate` of
    /// the strategies in `pkg/registry`): everywhere but for Leases.
    pub(crate) fn allows_unconditional_update(self) -> bool {
        self != Self::Leases
    }

    /// Whether a PUT creates what is not there (`AllowCreateOnUpdate`).
    pub(crate) fn allows_create_on_update(self) -> bool {
        matches!(self, Self::Leases | Self::Events)
    }

    /// The field labels that a selector may name (`AddFieldLabelConversionFunc` in `pkg/apis/core/v1`), as far as they
    /// are plain paths.
    fn field_labels(self) -> &'static [&'static str] {
        match self {
            Self::Nodes => &["metadata.name", "spec.unschedulable"],
            Self::Pods => &[
                "metadata.name",
                "metadata.namespace",
                "spec.nodeName",
                "status.phase",
                "status.podIP",
            ],
            Self::Events => &[
                "metadata.name",
                "metadata.namespace",
                "involvedObject.kind",
                "involvedObject.namespace",
                "involvedObject.name",
                "involvedObject.uid",
                "reason",
                "type",
            ],
            Self::Leases => &["metadata.name", "metadata.namespace"],
            Self::Namespaces => &["metadata.name", "status.phase"],
        }
    }

    pub(crate) fn supports_field(self, label: &str) -> bool {
        self.field_labels().contains(&label)
    }
}

/// A resource as one API group shows it. Events have two spellings over one storage, as in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) resource: Resource,
    pub(crate) group_version: &'static str,
    pub(crate) kind: &'static str,
    /// `schema.GroupResource.String()`: what messages and `details` name.
    pub(crate) group_resource: &'static str,
    plural: &'static str,
    group: &'static str,
}

/// The whole surface; for a resource with two spellings the stored one stands first.
const ENDPOINTS: [Endpoint; 6] = [
    endpoint(Resource::Nodes, "", "v1", "Node", "nodes", "nodes"),
    endpoint(Resource::Pods, "", "v1", "Pod", "pods", "pods"),
    endpoint(Resource::Events, "", "v1", "Event", "events", "events"),
    endpoint(
        Resource::Events,
        "events.k8s.io",
        "events.k8s.io/v1",
        "Event",
        "events",
        "events.events.k8s.io",
    ),
    endpoint(
        Resource::Namespaces,
        "",
        "v1",
        "Namespace",
        "namespaces",
        "namespaces",
    ),
    endpoint(
        Resource::Leases,
        "coordination.k8s.io",
        "coordination.k8s.io/v1",
        "Lease",
        "leases",
        "leases.coordination.k8s.io",
    ),
];

const fn endpoint(
    resource: Resource,
    group: &'static str,
    group_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    group_resource: &'static str,
) -> Endpoint {
    Endpoint {
        resource,
        group_version,
        kind,
        group_resource,
        plural,
        group,
    }
}

/// Fields of an Event, spelt as in core/v1 (the storage) and as in events.k8s.io/v1 (`pkg/apis/events/v1`).
const EVENT_SPELLINGS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

impl Endpoint {
    /// The group whose Events get the strict validation.
    pub(crate) fn is_events_v1(&self) -> bool {
        self.group == "events.k8s.io"
    }

    /// The endpoint in whose spelling the resource is stored.
    pub(crate) fn storage(&self) -> Self {
        ENDPOINTS
            .into_iter()
            .find(|endpoint| endpoint.resource == self.resource)
            .unwrap_or(*self)
    }

    /// From the wire into the storage's spelling and Kubernetes' canonical form: unknown fields go, times lose what
    /// their type cannot hold, absent and empty become one. Everything stored has been through here, so that "nothing
    /// changed" is plain equality.
    pub(crate) fn inward(&self, mut object: Value) -> Result<Value, serde_json::Error> {
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion".into(), self.group_version.into());
            map.insert("kind".into(), self.kind.into());
        }
        if self.is_events_v1() {
            object = canonical::<EventsV1>(object)?;
            respell(&mut object, |(core, events)| (events, core));
            // The core type demands the field, the newer one does not.
            if let Some(map) = object.as_object_mut() {
                map.entry("involvedObject")
                    .or_insert_with(|| Value::Object(Map::new()));
                map.insert("apiVersion".into(), "v1".into());
            }
        }
        match self.resource {
            Resource::Nodes => canonical::<Node>(object),
            Resource::Pods => canonical::<Pod>(object),
            Resource::Events => canonical::<Event>(object),
            Resource::Leases => canonical::<Lease>(object),
            Resource::Namespaces => canonical::<Namespace>(object),
        }
    }

    /// From the storage's spelling to this endpoint's.
    pub(crate) fn outward(&self, stored: &Value) -> Value {
        let mut object = stored.clone();
        if self.is_events_v1() {
            respell(&mut object, |(core, events)| (core, events));
            object["apiVersion"] = self.group_version.into();
        }
        object
    }
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Target {
    /// Reads `/api/v1/…` and `/apis/GROUP/VERSION/…`; anything else is no resource path.
    ///
    /// Names are taken as they stand: those of Kubernetes objects need no percent-encoding.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let mut parts = path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(String::from);
        let group = match parts.next()?.as_str() {
            "api" => String::new(),
            "apis" => parts.next()?,
            _ => return None,
        };
        if parts.next()? != "v1" {
            return None;
        }
        let rest: Vec<String> = parts.collect();
        let (namespace, rest) = match rest.as_slice() {
            [first, namespace, plural, tail @ ..]
                if first == "namespaces" && plural != "status" =>
            {
                (
                    Some(namespace.clone()),
                    [std::slice::from_ref(plural), tail].concat(),
                )
            }
            _ => (None, rest),
        };
        if rest.len() > 3 {
            return None;
        }
        let mut rest = rest.into_iter();
        let plural = rest.next()?;
        Some(Self {
            group,
            plural,
            namespace,
            name: rest.next(),
            subresource: rest.next(),
        })
    }

    /// The endpoint that serves this path, if there is one.
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        let endpoint = ENDPOINTS
            .iter()
            .find(|e| e.group == self.group && e.plural == self.plural)?;
        let namespaced = endpoint.resource.is_namespaced();
        let fits = if namespaced {
            self.namespace.is_some() || self.name.is_none()
        } else {
            self.namespace.is_none()
        };
        let known_subresource = match self.subresource.as_deref() {
            None => true,
            Some("status") => endpoint.resource.has_status(),
            Some(_) => false,
        };
        (fits && known_subresource).then_some(*endpoint)
    }
}

fn canonical<T: DeserializeOwned + Serialize>(object: Value) -> Result<Value, serde_json::Error> {
    let typed: T = serde_json::from_value(object)?;
    serde_json::to_value(typed)
}

fn respell(
    object: &mut Value,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(map) = object.as_object_mut() else {
        return;
    };
    for spelling in EVENT_SPELLINGS {
        let (from, to) = direction(spelling);
        if let Some(value) = map.remove(from) {
            map.insert(to.into(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Resource, Target};
    use serde_json::json;

    fn served(path: &str) -> Option<(Resource, Option<String>, Option<String>)> {
        let target = Target::parse(path)?;
        let endpoint = target.endpoint()?;
        Some((endpoint.resource, target.namespace, target.name))
    }

    /// Guards the way from paths to resources, the look-alikes of `namespaces` above all.
    #[test]
    fn paths_name_resources() {
        let own = |text: &str| Some(text.to_owned());
        assert_eq!(
            served("/api/v1/nodes/n1/status"),
            Some((Resource::Nodes, None, own("n1")))
        );
        assert_eq!(
            served("/api/v1/namespaces/a/pods/p"),
            Some((Resource::Pods, own("a"), own("p")))
        );
        assert_eq!(served("/api/v1/pods"), Some((Resource::Pods, None, None)));
        assert_eq!(
            served("/api/v1/namespaces/a"),
            Some((Resource::Namespaces, None, own("a")))
        );
        assert_eq!(
            served("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"),
            Some((Resource::Leases, own("kube-node-lease"), own("n1")))
        );
        assert_eq!(served("/api/v1/pods/p"), None, "a pod has a namespace");
        assert_eq!(
            served("/api/v1/namespaces/a/nodes"),
            None,
            "a node has none"
        );
        assert_eq!(served("/api/v1/nodes/n1/proxy"), None);
        assert_eq!(served("/apis/apps/v1/deployments"), None);
        assert_eq!(served("/apis/coordination.k8s.io/v1beta1/leases"), None);
        assert_eq!(served("/metrics"), None);
    }

    /// Guards that an Event written through one group reads rightly through the other.
    #[test]
    fn events_have_two_spellings_over_one_storage() {
        let events =
            Target::parse("/apis/events.k8s.io/v1/namespaces/default/events").expect("path");
        let events = events.endpoint().expect("served");
        let stored = events
            .inward(json!({
                "metadata": {"name": "e"}, "regarding": {"kind": "Node", "name": "n1"}, "note": "gone",
                "reportingController": "swimlet.dev/aggregator", "reason": "R", "type": "Warning",
            }))
            .expect("decodes");
        assert_eq!(stored["involvedObject"]["name"], "n1");
        assert_eq!(stored["message"], "gone");
        assert_eq!(stored["reportingComponent"], "swimlet.dev/aggregator");
        assert_eq!(stored["apiVersion"], "v1");
        let shown = events.outward(&stored);
        assert_eq!(shown["note"], "gone");
        assert_eq!(shown["apiVersion"], "events.k8s.io/v1");
        assert!(shown.get("message").is_none());
    }
}
