//! The query of a list or a watch, parsed into what it means.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::resource::Resource;

/// `metav1.ListOptions` as the query string spells them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawListOptions {
    pub(crate) watch: Option<String>,
    label_selector: Option<String>,
    field_selector: Option<String>,
    resource_version: Option<String>,
    resource_version_match: Option<String>,
    allow_watch_bookmarks: Option<String>,
    send_initial_events: Option<String>,
    timeout_seconds: Option<u64>,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// What a list or a watch asks for.
#[derive(Debug)]
pub(crate) struct ListOptions {
    pub(crate) selector: FieldSelector,
    /// None for "the most recent", which 0 ("any") is treated as too: there is no older cache here.
    pub(crate) version: Option<u64>,
    pub(crate) bookmarks: bool,
    /// A watch-list: the state first, then a bookmark that says so, then the changes (KEP-3157).
    pub(crate) initial_events: bool,
    pub(crate) timeout: Option<Duration>,
}

impl ListOptions {
    pub(crate) fn parse(resource: Resource, raw: &RawListOptions) -> Result<Self, ApiError> {
        if given(&raw.label_selector).is_some() {
            return Err(ApiError::bad_request(
                "labelSelector is not supported by the stand-in: list everything and filter, or use a fieldSelector",
            ));
        }
        if given(&raw.continue_token).is_some() {
            return Err(ApiError::bad_request(
                "continue key is not valid: the stand-in answers every list whole and gives out no continue tokens",
            ));
        }
        if raw.resource_version_match.as_deref() == Some("Exact") {
            return Err(ApiError::bad_request(
                "resourceVersionMatch=Exact is not supported by the stand-in: use NotOlderThan",
            ));
        }
        let version = given(&raw.resource_version).map(|text| {
            text.parse::<u64>()
                .map_err(|_| ApiError::bad_request(format!("invalid resource version {text:?}")))
        });
        Ok(Self {
            selector: FieldSelector::parse(
                resource,
                raw.field_selector.as_deref().unwrap_or_default(),
            )?,
            version: version.transpose()?.filter(|version| *version != 0),
            bookmarks: flag(&raw.allow_watch_bookmarks),
            initial_events: flag(&raw.send_initial_events),
            timeout: raw
                .timeout_seconds
                .filter(|seconds| *seconds != 0)
                .map(Duration::from_secs),
        })
    }
}

impl RawListOptions {
    pub(crate) fn is_watch(&self) -> bool {
        flag(&self.watch)
    }
}

/// A conjunction of `path=value` and `path!=value`.
#[derive(Debug, Default)]
pub(crate) struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Debug)]
struct Term {
    path: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    fn parse(resource: Resource, text: &str) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for term in text.split(',').filter(|term| !term.is_empty()) {
            let parsed = term
                .split_once("!=")
                .map(|(path, value)| (path, value, false))
                .or_else(|| {
                    term.split_once("==")
                        .map(|(path, value)| (path, value, true))
                })
                .or_else(|| {
                    term.split_once('=')
                        .map(|(path, value)| (path, value, true))
                });
            let Some((path, value, equal)) = parsed else {
                return Err(ApiError::bad_request(format!(
                    "invalid field selector: {term:?}: use path=value"
                )));
            };
            if !resource.supports_field(path) {
                return Err(ApiError::bad_request(format!(
                    "field label not supported: {path}"
                )));
            }
            terms.push(Term {
                path: path.into(),
                value: value.into(),
                equal,
            });
        }
        Ok(Self { terms })
    }

    /// An absent field counts as empty, and as `false` for the one boolean.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| {
            let field = term
                .path
                .split('.')
                .fold(object, |value, part| &value[part]);
            let text = match field {
                Value::String(text) => text.clone(),
                Value::Null if term.path == "spec.unschedulable" => "false".into(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            (text == term.value) == term.equal
        })
    }
}

fn given(option: &Option<String>) -> Option<&str> {
    option.as_deref().filter(|text| !text.is_empty())
}

/// As `runtime.Convert_Slice_string_To_bool`: present and neither `false` nor `0` is true.
fn flag(option: &Option<String>) -> bool {
    option
        .as_deref()
        .is_some_and(|text| !matches!(text, "false" | "0"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::FieldSelector;
    use crate::resource::Resource;

    /// Guards that selectors select, and that an unknown field is an error rather than an empty list.
    #[test]
    fn selectors_match_by_field() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}});
        let matches = |text: &str| {
            FieldSelector::parse(Resource::Pods, text)
                .expect("selector")
                .matches(&pod)
        };
        assert!(matches("spec.nodeName=n1"));
        assert!(matches("spec.nodeName==n1,metadata.name!=q"));
        assert!(!matches("spec.nodeName=n2"));
        assert!(matches("status.phase="));
        assert!(FieldSelector::parse(Resource::Nodes, "spec.nodeName=n1").is_err());
        assert!(FieldSelector::parse(Resource::Pods, "spec.nodeName").is_err());
    }
}
