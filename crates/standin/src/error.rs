//! What the server answers when it refuses: `metav1.Status` documents, worded as `k8s.io/apimachinery/pkg/api/errors`
//! words them.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

/// client-go and kube compare reasons, people read messages; both are those of 1.37.
const OPTIMISTIC_LOCK: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// A refusal, on its way to becoming a response or the object of an `ERROR` watch event.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Value,
    retry_after_s: Option<u32>,
}

impl ApiError {
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message.into())
    }

    pub(crate) fn path_not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource".into(),
        )
    }

    pub(crate) fn not_found(group_resource: &str, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{group_resource} \"{name}\" not found"),
        )
        .about(group_resource, name)
    }

    pub(crate) fn already_exists(group_resource: &str, name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExists",
            format!("{group_resource} \"{name}\" already exists"),
        )
        .about(group_resource, name)
    }

    /// The resource version that the writer read is no longer the newest.
    pub(crate) fn stale(group_resource: &str, name: &str) -> Self {
        Self::conflict(group_resource, name, OPTIMISTIC_LOCK)
    }

    /// A precondition of the request names another UID or version (`storage.Preconditions.Check`).
    pub(crate) fn precondition(
        group_resource: &str,
        name: &str,
        field: &str,
        wanted: &str,
        found: &str,
    ) -> Self {
        let message = format!(
            "Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
        );
        Self::conflict(group_resource, name, &message)
    }

    pub(crate) fn no_object_for_uid(group_resource: &str, name: &str, uid: &str) -> Self {
        let message = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        Self::conflict(group_resource, name, &message)
    }

    pub(crate) fn invalid(kind: &str, name: &str, field: &str, problem: &str) -> Self {
        let message = format!("{kind} \"{name}\" is invalid: {field}: {problem}");
        let mut error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        error.details = json!({
            "kind": kind, "name": name,
            "causes": [{"reason": "FieldValueInvalid", "message": problem, "field": field}],
        });
        error
    }

    pub(crate) fn method_not_supported(group_resource: &str, action: &str) -> Self {
        let message =
            format!("{action} is not supported on resources of kind \"{group_resource}\"");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    pub(crate) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json".into();
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub(crate) fn too_large(limit_bytes: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit_bytes}");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            message,
        )
    }

    /// The version that a watch wants to start from is no longer in the history.
    pub(crate) fn expired(wanted: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {wanted} ({oldest})");
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// The version that a list must be as new as has not been written yet (`storage.NewTooLargeResourceVersionError`).
    pub(crate) fn version_in_the_future(wanted: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
        let mut error = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        error.details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        error.retry_after_s = Some(1);
        error
    }

    pub(crate) fn too_many_watches() -> Self {
        let message =
            "Too many requests: too many watches are open, close one or try again later".into();
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        error.details = json!({"retryAfterSeconds": 1});
        error.retry_after_s = Some(1);
        error
    }

    /// An error that the registry does not classify: 500 without a reason, as `ErrorToAPIStatus` has it.
    pub(crate) fn unclassified(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message.into())
    }

    /// The `metav1.Status` document.
    pub(crate) fn document(&self) -> Value {
        let mut document = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        if !self.details.is_null() {
            document["details"] = self.details.clone();
        }
        document
    }

    fn new(code: StatusCode, reason: &'static str, message: String) -> Self {
        Self {
            code,
            reason,
            message,
            details: Value::Null,
            retry_after_s: None,
        }
    }

    fn conflict(group_resource: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {group_resource} \"{name}\": {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(group_resource, name)
    }

    /// `details.kind` is the plural resource there, not the kind, and the group stands apart.
    fn about(mut self, group_resource: &str, name: &str) -> Self {
        self.details = match group_resource.split_once('.') {
            Some((plural, group)) => json!({"name": name, "group": group, "kind": plural}),
            None => json!({"name": name, "kind": group_resource}),
        };
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.code, &self.document());
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A JSON document as a response.
pub(crate) fn json_response(code: StatusCode, document: &Value) -> Response {
    let mut response = Response::new(Body::from(document.to_string()));
    *response.status_mut() = code;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
