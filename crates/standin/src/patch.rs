//! The two patch types that matter here: strategic merge patch, after
//! `k8s.io/apimachinery/pkg/util/strategicpatch` (`StrategicMergeMapPatchUsingLookupPatchMeta`, which merges parallel
//! lists and ignores unmatched nulls), and JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

use crate::resource::Resource;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PREFIX: &str = "$deleteFromPrimitiveList/";
const ORDER_PREFIX: &str = "$setElementOrder/";

/// A patch that cannot be applied; the server answers 422 for it, as for `mergepatch` errors.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PatchError {
    #[error(
        "unable to find the merge key {key} in an element of {path}: give every element its key"
    )]
    NoMergeKey { key: &'static str, path: String },
    #[error("the directive $patch at {path} is {found}: use \"replace\" or \"delete\"")]
    Directive { path: String, found: Value },
    #[error(
        "the elements of {path} are of different types: a merged list holds either objects or plain values"
    )]
    MixedList { path: String },
    #[error(
        "{directive} at {path} is not the list it must be, or leaves out something that the patch sets"
    )]
    BadList {
        directive: &'static str,
        path: String,
    },
}

/// How a list is merged: the `patchStrategy` and `patchMergeKey` tags of `k8s.io/api` and `apimachinery`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListStrategy {
    Replace,
    MergeByKey(&'static str),
    MergeValues,
}

/// The tags of the fields that the served resources have; a list that is not named here is replaced whole, which is
/// also right for `spec.taints`, `status.images` and `status.containerStatuses`.
fn list_strategy(resource: Resource, path: &str) -> ListStrategy {
    match (resource, path) {
        (_, ".metadata.finalizers") | (Resource::Nodes, ".spec.podCIDRs") => {
            ListStrategy::MergeValues
        }
        (_, ".metadata.ownerReferences") => ListStrategy::MergeByKey("uid"),
        (Resource::Nodes | Resource::Pods | Resource::Namespaces, ".status.conditions")
        | (Resource::Nodes, ".status.addresses") => ListStrategy::MergeByKey("type"),
        (Resource::Pods, ".status.podIPs" | ".status.hostIPs" | ".spec.hostAliases") => {
            ListStrategy::MergeByKey("ip")
        }
        (
            Resource::Pods,
            ".spec.containers"
            | ".spec.initContainers"
            | ".spec.ephemeralContainers"
            | ".spec.volumes"
            | ".spec.imagePullSecrets"
            | ".spec.containers.env"
            | ".spec.initContainers.env",
        ) => ListStrategy::MergeByKey("name"),
        _ => ListStrategy::Replace,
    }
}

/// Applies a strategic merge patch.
pub(crate) fn strategic(
    resource: Resource,
    original: Value,
    patch: Value,
) -> Result<Value, PatchError> {
    match (original, patch) {
        (Value::Object(original), Value::Object(patch)) => Merge { resource }
            .map(original, patch, "")
            .map(Value::Object),
        (original, _) => Ok(original),
    }
}

/// Applies a JSON merge patch: lists and plain values are replaced, null deletes.
pub(crate) fn json_merge(original: Value, patch: Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch;
    };
    let mut merged = match original {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    for (key, value) in patch {
        if value.is_null() {
            merged.remove(&key);
        } else {
            let before = merged.remove(&key).unwrap_or(Value::Null);
            merged.insert(key, json_merge(before, value));
        }
    }
    Value::Object(merged)
}

struct Merge {
    resource: Resource,
}

impl Merge {
    fn map(
        &self,
        mut original: Map<String, Value>,
        mut patch: Map<String, Value>,
        path: &str,
    ) -> Result<Map<String, Value>, PatchError> {
        match patch.remove(DIRECTIVE) {
            None => {}
            Some(Value::String(directive)) if directive == "replace" => return Ok(patch),
            Some(Value::String(directive)) if directive == "delete" => return Ok(Map::new()),
            Some(found) => {
                return Err(PatchError::Directive {
                    path: path.into(),
                    found,
                });
            }
        }
        retain_keys(&mut original, &mut patch, path)?;
        self.ordered_lists(&mut original, &mut patch, path)?;
        for (key, value) in patch {
            if let Some(list) = key.strip_prefix(DELETE_PREFIX) {
                delete_values(&mut original, list, value, path)?;
                continue;
            }
            let merged = match (original.remove(&key), value) {
                (_, Value::Null) => None,
                (Some(Value::Object(before)), Value::Object(change)) => Some(Value::Object(
                    self.map(before, change, &format!("{path}.{key}"))?,
                )),
                (Some(Value::Array(before)), Value::Array(change)) => Some(Value::Array(
                    self.list(before, change, &format!("{path}.{key}"))?,
                )),
                (_, value) => without_directives(value),
            };
            if let Some(merged) = merged {
                original.insert(key, merged);
            }
        }
        Ok(original)
    }

    /// Handles `$setElementOrder/LIST`, which the kubelet's own status patches carry, together with the list it orders.
    fn ordered_lists(
        &self,
        original: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
        path: &str,
    ) -> Result<(), PatchError> {
        let orders: Vec<String> = patch
            .keys()
            .filter(|key| key.starts_with(ORDER_PREFIX))
            .cloned()
            .collect();
        for directive in orders {
            let field = directive.trim_start_matches(ORDER_PREFIX).to_owned();
            let list_path = format!("{path}.{field}");
            let bad = || PatchError::BadList {
                directive: ORDER_PREFIX,
                path: list_path.clone(),
            };
            let Some(Value::Array(order)) = patch.remove(&directive) else {
                return Err(bad());
            };
            let change = match patch.remove(&field) {
                None => None,
                Some(Value::Array(change)) => Some(change),
                Some(_) => return Err(bad()),
            };
            let key = self.merge_key(&list_path);
            if change
                .iter()
                .flatten()
                .any(|item| position(&order, item, key).is_none())
            {
                return Err(bad());
            }
            let before = match original.remove(&field) {
                None => None,
                Some(Value::Array(before)) => Some(before),
                Some(_) => return Err(bad()),
            };
            let merged = match (before.clone(), change) {
                (None, None) => continue,
                (Some(before), None) => before,
                (None, Some(change)) => change.into_iter().filter_map(without_directives).collect(),
                (Some(before), Some(change)) => self.list(before, change, &list_path)?,
            };
            let server_order = before.unwrap_or_default();
            original.insert(
                field,
                Value::Array(arrange(merged, &order, &server_order, key)),
            );
        }
        Ok(())
    }

    fn list(
        &self,
        original: Vec<Value>,
        patch: Vec<Value>,
        path: &str,
    ) -> Result<Vec<Value>, PatchError> {
        let objects = original
            .iter()
            .chain(&patch)
            .filter(|item| item.is_object())
            .count();
        match list_strategy(self.resource, path) {
            ListStrategy::Replace => Ok(patch),
            _ if objects != 0 && objects != original.len() + patch.len() => {
                Err(PatchError::MixedList { path: path.into() })
            }
            ListStrategy::MergeValues => {
                let mut merged: Vec<Value> = Vec::new();
                for value in original.iter().chain(&patch) {
                    if !merged.contains(value) {
                        merged.push(value.clone());
                    }
                }
                Ok(arrange(merged, &patch, &original, None))
            }
            ListStrategy::MergeByKey(key) => self.keyed_list(original, patch, key, path),
        }
    }

    /// `mergeSlice` for lists of objects: deletions first, then each element into its namesake or to the end, then the
    /// order of the patch for what it names and the old order for the rest.
    fn keyed_list(
        &self,
        mut original: Vec<Value>,
        patch: Vec<Value>,
        key: &'static str,
        path: &str,
    ) -> Result<Vec<Value>, PatchError> {
        let no_key = || PatchError::NoMergeKey {
            key,
            path: path.into(),
        };
        let mut changes = Vec::with_capacity(patch.len());
        let mut replace = false;
        for item in patch {
            match item
                .get(DIRECTIVE)
                .map(|directive| (directive.as_str(), directive))
            {
                None => changes.push(item),
                Some((Some("replace"), _)) => replace = true,
                Some((Some("delete"), _)) => {
                    let gone = item.get(key).ok_or_else(no_key)?;
                    original.retain(|element| element.get(key) != Some(gone));
                }
                Some((_, found)) => {
                    return Err(PatchError::Directive {
                        path: path.into(),
                        found: found.clone(),
                    });
                }
            }
        }
        if replace {
            return Ok(changes);
        }
        let mut merged = original.clone();
        for change in &changes {
            let name = change.get(key).ok_or_else(no_key)?;
            let found = merged
                .iter_mut()
                .find(|element| element.get(key) == Some(name));
            match (found, change) {
                (Some(slot), Value::Object(change)) => {
                    let before = slot.as_object().cloned().unwrap_or_default();
                    *slot = Value::Object(self.map(before, change.clone(), path)?);
                }
                _ => merged.extend(without_directives(change.clone())),
            }
        }
        Ok(arrange(merged, &changes, &original, Some(key)))
    }

    fn merge_key(&self, path: &str) -> Option<&'static str> {
        match list_strategy(self.resource, path) {
            ListStrategy::MergeByKey(key) => Some(key),
            ListStrategy::Replace | ListStrategy::MergeValues => None,
        }
    }
}

/// `normalizeElementOrder` and `mergeSortedSlice`: the elements named by `order` in its order, the others in the
/// server's, and the two woven together so that an element keeps its old place relative to those it had one to.
fn arrange(
    items: Vec<Value>,
    order: &[Value],
    server_order: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let (mut named, mut rest): (Vec<Value>, Vec<Value>) = items
        .into_iter()
        .partition(|item| position(order, item, key).is_some());
    named.sort_by_key(|item| position(order, item, key));
    rest.sort_by_key(|item| position(server_order, item, key));
    let mut arranged = Vec::with_capacity(named.len() + rest.len());
    let mut named = named.into_iter().peekable();
    let mut rest = rest.into_iter().peekable();
    loop {
        let from_rest = match (rest.peek(), named.peek()) {
            (None, None) => return arranged,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(left), Some(right)) => {
                match (
                    position(server_order, left, key),
                    position(server_order, right, key),
                ) {
                    (Some(left), Some(right)) => left < right,
                    _ => false,
                }
            }
        };
        arranged.extend(if from_rest { rest.next() } else { named.next() });
    }
}

fn position(list: &[Value], wanted: &Value, key: Option<&str>) -> Option<usize> {
    match key {
        Some(key) => {
            let name = wanted.get(key)?;
            list.iter().position(|item| item.get(key) == Some(name))
        }
        None => list.iter().position(|item| item == wanted),
    }
}

fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    path: &str,
) -> Result<(), PatchError> {
    let Some(kept) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let bad = || PatchError::BadList {
        directive: RETAIN_KEYS,
        path: path.into(),
    };
    let kept = kept.as_array().ok_or_else(bad)?;
    let is_kept = |key: &str| kept.iter().any(|name| name == key);
    let unlisted = patch
        .iter()
        .any(|(key, value)| !value.is_null() && !key.starts_with('$') && !is_kept(key));
    if unlisted {
        return Err(bad());
    }
    original.retain(|key, _| is_kept(key));
    Ok(())
}

fn delete_values(
    original: &mut Map<String, Value>,
    field: &str,
    values: Value,
    path: &str,
) -> Result<(), PatchError> {
    let Value::Array(values) = values else {
        return Err(PatchError::BadList {
            directive: DELETE_PREFIX,
            path: format!("{path}.{field}"),
        });
    };
    if let Some(Value::Array(list)) = original.get_mut(field) {
        list.retain(|value| !values.contains(value));
    }
    Ok(())
}

/// What is new takes the patch's value, without its directives and nulls; a value that *is* a directive vanishes.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter()
                .filter(|(_, value)| !value.is_null())
                .filter_map(|(key, value)| Some((key, without_directives(value)?)))
                .collect(),
        )),
        Value::Array(list) => Some(Value::Array(
            list.into_iter().filter_map(without_directives).collect(),
        )),
        plain => Some(plain),
    }
}

#[cfg(test)]
mod tests;
