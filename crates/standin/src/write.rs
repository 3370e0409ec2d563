//! What a write may do: the generic registry (`k8s.io/apiserver/pkg/registry/generic/registry/store.go` and
//! `rest/{create,update}.go`) and the strategies of the served resources (`k8s.io/kubernetes/pkg/registry`).

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::ids::SplitMix64;
use crate::patch;
use crate::resource::{Endpoint, Resource};
use crate::store::{ObjectKey, Store};

/// The patch types that are served, by their media types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchType {
    Strategic,
    JsonMerge,
}

impl PatchType {
    pub(crate) const ACCEPTED: [&str; 2] = [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ];

    pub(crate) fn of(media_type: &str) -> Option<Self> {
        match media_type {
            "application/merge-patch+json" => Some(Self::JsonMerge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }
}

/// Where a write goes.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) endpoint: Endpoint,
    /// Empty for cluster-scoped resources.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) status: bool,
}

impl Place {
    fn key(&self) -> ObjectKey {
        (self.namespace.clone(), self.name.clone())
    }

    fn not_found(&self) -> ApiError {
        ApiError::not_found(self.endpoint.group_resource, &self.name)
    }

    fn invalid(&self, field: &str, problem: &str) -> ApiError {
        ApiError::invalid(self.endpoint.kind, &self.name, field, problem)
    }
}

/// POST. The name comes from the body, so `place.name` is empty.
pub(crate) fn create(
    store: &Store,
    mut place: Place,
    mut body: Value,
) -> Result<Arc<Value>, ApiError> {
    check_type(&place.endpoint, &body)?;
    settle_namespace(&place.namespace, &mut body)?;
    place.name = match (text(&body, "name"), text(&body, "generateName")) {
        ("", "") => {
            return Err(place.invalid(
                "metadata.name",
                "Required value: name or generateName is required",
            ));
        }
        ("", prefix) => format!("{prefix}{}", store.fresh_suffix()),
        (name, _) => name.to_owned(),
    };
    if !is_dns_subdomain(&place.name) {
        return Err(place.invalid("metadata.name", "Invalid value: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"));
    }
    if !matches!(text(&body, "resourceVersion"), "" | "0") {
        return Err(ApiError::unclassified(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let namespace = (String::new(), place.namespace.clone());
    if place.endpoint.resource.is_namespaced()
        && store.read(Resource::Namespaces, &namespace).is_none()
    {
        return Err(ApiError::not_found("namespaces", &place.namespace));
    }
    let object = decode(&place.endpoint, body)?;
    validate(&place, &object)?;
    store.create(&place.endpoint, place.key(), |ids| {
        Ok(born(&place, object, ids))
    })
}

/// PUT. Says whether the object was created by it.
pub(crate) fn replace(
    store: &Store,
    place: &Place,
    mut body: Value,
) -> Result<(Arc<Value>, bool), ApiError> {
    check_type(&place.endpoint, &body)?;
    check_name(place, &body)?;
    settle_namespace(&place.namespace, &mut body)?;
    let uid = text(&body, "uid").to_owned();
    let updated = store.update(&place.endpoint, &place.key(), |current| {
        // A UID in a PUT is a precondition, checked before anything else; in a patch it is a field that may not change.
        let found = text(current, "uid");
        if !uid.is_empty() && uid != found {
            return Err(ApiError::precondition(
                place.endpoint.group_resource,
                &place.name,
                "UID",
                &uid,
                found,
            ));
        }
        succeed(place, current, decode(&place.endpoint, body.clone())?)
    });
    match updated {
        Some(updated) => Ok((updated?, false)),
        None if !place.endpoint.resource.allows_create_on_update() => Err(place.not_found()),
        None if !uid.is_empty() => Err(ApiError::no_object_for_uid(
            place.endpoint.group_resource,
            &place.name,
            &uid,
        )),
        None => {
            body["metadata"]["name"] = place.name.clone().into();
            body["metadata"]["resourceVersion"] = "".into();
            Ok((
                create(
                    store,
                    Place {
                        name: String::new(),
                        ..place.clone()
                    },
                    body,
                )?,
                true,
            ))
        }
    }
}

/// PATCH. Runs under the store's lock, so unlike in etcd there is nothing to retry.
pub(crate) fn patch(
    store: &Store,
    place: &Place,
    patch_type: PatchType,
    patch: Value,
) -> Result<Arc<Value>, ApiError> {
    if !patch.is_object() {
        return Err(ApiError::bad_request(
            "the patch is no JSON object: send an object with the fields to change",
        ));
    }
    let updated = store.update(&place.endpoint, &place.key(), |current| {
        let shown = place.endpoint.outward(current);
        let mut patched = match patch_type {
            PatchType::JsonMerge => patch::json_merge(shown, patch),
            PatchType::Strategic => patch::strategic(place.endpoint.resource, shown, patch)
                .map_err(|error| place.invalid("patch", &format!("Invalid value: {error}")))?,
        };
        check_type(&place.endpoint, &patched)?;
        check_name(place, &patched)?;
        settle_namespace(&place.namespace, &mut patched)?;
        succeed(place, current, decode(&place.endpoint, patched)?)
    });
    updated.unwrap_or_else(|| Err(place.not_found()))
}

/// DELETE, with the preconditions of its `DeleteOptions`.
pub(crate) fn delete(
    store: &Store,
    place: &Place,
    options: &Value,
) -> Result<Arc<Value>, ApiError> {
    let deleted = store.delete(&place.endpoint, &place.key(), |current| {
        for (field, shown) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let found = text(current, field);
            if let Some(wanted) = options["preconditions"][field].as_str()
                && wanted != found
            {
                let group_resource = place.endpoint.group_resource;
                return Err(ApiError::precondition(
                    group_resource,
                    &place.name,
                    shown,
                    wanted,
                    found,
                ));
            }
        }
        Ok(())
    });
    deleted.unwrap_or_else(|| Err(place.not_found()))
}

/// The object that replaces `current`, or why it may not (`Store.Update`, then `rest.BeforeUpdate`, in their order).
fn succeed(place: &Place, current: &Value, mut next: Value) -> Result<Value, ApiError> {
    let resource = place.endpoint.resource;
    match text(&next, "resourceVersion") {
        "" | "0" if resource.allows_unconditional_update() => {}
        "" | "0" => {
            return Err(place.invalid(
                "metadata.resourceVersion",
                "Invalid value: 0: must be specified for an update",
            ));
        }
        version if version == text(current, "resourceVersion") => {}
        _ => return Err(ApiError::stale(place.endpoint.group_resource, &place.name)),
    }
    let uid = text(&next, "uid");
    if !uid.is_empty() && uid != text(current, "uid") {
        return Err(place.invalid(
            "metadata.uid",
            &format!("Invalid value: \"{uid}\": field is immutable"),
        ));
    }
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "name",
        "namespace",
    ] {
        copy(&mut next, current, &["metadata", field]);
    }
    match (resource, place.status) {
        (Resource::Pods, true) => {
            copy(&mut next, current, &["spec"]);
            copy(&mut next, current, &["metadata", "ownerReferences"]);
            if next["status"]["qosClass"].is_null() {
                copy(&mut next, current, &["status", "qosClass"]);
            }
        }
        (_, true) => copy(&mut next, current, &["spec"]),
        (_, false) if resource.has_status() => copy(&mut next, current, &["status"]),
        _ => {}
    }
    // Copied parts may be absent on both sides; the canonical form makes that one.
    let next = decode(&place.endpoint.storage(), next)?;
    validate(place, &next)?;
    Ok(next)
}

/// `rest.BeforeCreate`: identity and birth are the server's to give; so is the first status of a Pod.
fn born(place: &Place, mut object: Value, ids: &mut SplitMix64) -> Value {
    let metadata = &mut object["metadata"];
    metadata["name"] = place.name.clone().into();
    metadata["uid"] = ids.uid().into();
    metadata["creationTimestamp"] = Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
        .into();
    match place.endpoint.resource {
        Resource::Pods => object["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"}),
        Resource::Namespaces => object["status"] = json!({"phase": "Active"}),
        Resource::Nodes | Resource::Events | Resource::Leases => {}
    }
    object
}

/// The validation that a client of ours could run into.
fn validate(place: &Place, object: &Value) -> Result<(), ApiError> {
    match place.endpoint.resource {
        Resource::Leases => validate_lease(place, object),
        Resource::Events => validate_event(place, object),
        Resource::Nodes | Resource::Pods | Resource::Namespaces => Ok(()),
    }
}

/// `ValidateLeaseSpec` in `pkg/apis/coordination/validation`.
fn validate_lease(place: &Place, lease: &Value) -> Result<(), ApiError> {
    let spec = &lease["spec"];
    if spec["leaseDurationSeconds"]
        .as_i64()
        .is_some_and(|seconds| seconds <= 0)
    {
        return Err(place.invalid(
            "spec.leaseDurationSeconds",
            "Invalid value: must be greater than 0",
        ));
    }
    if spec["leaseTransitions"]
        .as_i64()
        .is_some_and(|count| count < 0)
    {
        return Err(place.invalid(
            "spec.leaseTransitions",
            "Invalid value: must be greater than or equal to 0",
        ));
    }
    Ok(())
}

/// `ValidateEventCreate` in `pkg/apis/core/validation/events.go`: an Event lives beside what it is about, and one
/// about a cluster-scoped object lives in `default`.
fn validate_event(place: &Place, event: &Value) -> Result<(), ApiError> {
    let about = event["involvedObject"]["namespace"]
        .as_str()
        .unwrap_or_default();
    let new_style = !event["eventTime"].is_null();
    let fits = match (about, place.namespace.as_str()) {
        ("", "default") => true,
        ("", "kube-system") => new_style,
        ("", _) => false,
        (about, namespace) => new_style || about == namespace,
    };
    if !fits {
        return Err(place.invalid(
            "involvedObject.namespace",
            "Invalid value: does not match event.namespace",
        ));
    }
    let required: &[&str] = if new_style {
        &[
            "reportingComponent",
            "reportingInstance",
            "action",
            "reason",
        ]
    } else {
        &[]
    };
    if let Some(missing) = required
        .iter()
        .find(|field| event[**field].as_str().unwrap_or_default().is_empty())
    {
        return Err(place.invalid(missing, "Required value"));
    }
    for (field, limit) in [
        ("reportingInstance", 128),
        ("action", 128),
        ("reason", 128),
        ("message", 1024),
    ] {
        if new_style
            && event[field]
                .as_str()
                .is_some_and(|value| value.len() > limit)
        {
            return Err(place.invalid(
                field,
                &format!("Invalid value: can have at most {limit} characters"),
            ));
        }
    }
    if place.endpoint.is_events_v1() {
        if !new_style {
            return Err(place.invalid("eventTime", "Required value"));
        }
        if !matches!(event["type"].as_str(), Some("Normal" | "Warning")) {
            return Err(place.invalid("type", "Invalid value: has invalid value"));
        }
    }
    Ok(())
}

fn decode(endpoint: &Endpoint, object: Value) -> Result<Value, ApiError> {
    endpoint.inward(object).map_err(|error| {
        let Endpoint {
            kind,
            group_version,
            ..
        } = endpoint;
        ApiError::bad_request(format!(
            "{kind} in version \"{group_version}\" cannot be handled as a {kind}: {error}"
        ))
    })
}

fn check_type(endpoint: &Endpoint, object: &Value) -> Result<(), ApiError> {
    if !object.is_object() {
        return Err(ApiError::bad_request(
            "the body is no JSON object: send one object of the resource",
        ));
    }
    if !object["metadata"].is_null() && !object["metadata"].is_object() {
        return Err(ApiError::bad_request(
            "metadata is no JSON object: send the object's metadata",
        ));
    }
    for (field, wanted) in [
        ("kind", endpoint.kind),
        ("apiVersion", endpoint.group_version),
    ] {
        if let Some(found) = object[field].as_str()
            && !found.is_empty()
            && found != wanted
        {
            let message = format!(
                "the {field} in the data ({found}) does not match the expected one ({wanted})"
            );
            return Err(ApiError::bad_request(message));
        }
    }
    Ok(())
}

/// `checkName` in `endpoints/handlers/rest.go`.
fn check_name(place: &Place, object: &Value) -> Result<(), ApiError> {
    let (found, wanted) = (text(object, "name"), &place.name);
    if found != wanted {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({wanted})"
        )));
    }
    Ok(())
}

/// `rest.EnsureObjectNamespaceMatchesRequestNamespace`.
fn settle_namespace(namespace: &str, object: &mut Value) -> Result<(), ApiError> {
    let found = text(object, "namespace");
    if !found.is_empty() && !namespace.is_empty() && found != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if object["metadata"].is_null() {
        object["metadata"] = json!({});
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("namespace");
        if !namespace.is_empty() {
            metadata.insert("namespace".into(), namespace.into());
        }
    }
    Ok(())
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Makes `path` in `target` what it is in `source`, absence included.
fn copy(target: &mut Value, source: &Value, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let (mut to, mut from) = (target, source);
    for parent in parents {
        to = &mut to[*parent];
        from = &from[*parent];
    }
    match from.get(last) {
        Some(value) => to[*last] = value.clone(),
        None => {
            if let Some(map) = to.as_object_mut() {
                map.remove(*last);
            }
        }
    }
}

/// RFC 1123, as `IsDNS1123Subdomain` has it.
fn is_dns_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}
