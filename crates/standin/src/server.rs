//! From an HTTP request to an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::error::{ApiError, json_response};
use crate::faults::{Fault, Faults};
use crate::query::{ListOptions, RawListOptions};
use crate::requests::{RequestLog, RequestRecord, Verb};
use crate::resource::{Endpoint, Resource, Target};
use crate::store::Store;
use crate::watch;
use crate::write::{self, PatchType, Place};

/// The real server's `MaxRequestBodyBytes`.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// What every request shares.
pub(crate) struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) faults: Faults,
    pub(crate) requests: RequestLog,
    pub(crate) bookmark_period: Duration,
    pub(crate) watches: Arc<Semaphore>,
    pub(crate) watches_refused: AtomicU64,
    pub(crate) stopping: CancellationToken,
}

/// The one handler: every path comes here.
pub(crate) async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(target) = Target::parse(parts.uri.path()) else {
        return without_resource(&parts);
    };
    let query = Query::<RawListOptions>::try_from_uri(&parts.uri);
    let is_watch = query.as_ref().is_ok_and(|query| query.is_watch());
    let Some(verb) = verb_of(&parts.method, target.name.is_some(), is_watch) else {
        return ApiError::method_not_supported(&target.plural, parts.method.as_str())
            .into_response();
    };
    let mut record = RequestRecord {
        verb,
        resource: target.plural.clone(),
        subresource: target.subresource.clone(),
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        user_agent: text_of(&parts.headers, header::USER_AGENT).to_owned(),
        code: 0,
    };
    let response = match read_body(body).await {
        Err(refusal) => refusal.into_response(),
        Ok(body) => {
            let answered = meet_fault(&shared, &record).await;
            answered.unwrap_or_else(|| {
                let raw = query
                    .map(|Query(raw)| raw)
                    .map_err(|error| ApiError::bad_request(error.to_string()));
                let call = Call {
                    shared: &shared,
                    headers: &parts.headers,
                    verb,
                    target,
                };
                raw.and_then(|raw| call.answer(&raw, &body))
                    .unwrap_or_else(IntoResponse::into_response)
            })
        }
    };
    record.code = response.status().as_u16();
    tracing::debug!(request = %record, "answered");
    shared.requests.push(record);
    response
}

async fn read_body(body: Body) -> Result<Bytes, ApiError> {
    to_bytes(body, BODY_BYTES_MAX)
        .await
        .map_err(|_| ApiError::too_large(BODY_BYTES_MAX))
}

/// Waits out a hold or a delay, or gives the answer that a test has set in place of the server's.
async fn meet_fault(shared: &Shared, record: &RequestRecord) -> Option<Response> {
    match shared.faults.meet(record)? {
        Fault::Answered(answer) => Some(answer.into_response()),
        Fault::Delayed(delay) => tokio::select! {
            () = tokio::time::sleep(delay) => None,
            () = shared.stopping.cancelled() => Some(StatusCode::SERVICE_UNAVAILABLE.into_response()),
        },
        Fault::Held { reached, released } => {
            // A test that does not care when the request came has dropped the other end.
            let _ = reached.send(record.clone());
            tokio::select! {
                // An error means that the hold was dropped, which releases too.
                _ = released => None,
                () = shared.stopping.cancelled() => Some(StatusCode::SERVICE_UNAVAILABLE.into_response()),
            }
        }
    }
}

struct Call<'a> {
    shared: &'a Shared,
    headers: &'a HeaderMap,
    verb: Verb,
    target: Target,
}

impl Call<'_> {
    fn answer(self, raw: &RawListOptions, body: &Bytes) -> Result<Response, ApiError> {
        if !accepts_json(text_of(self.headers, header::ACCEPT)) {
            return Err(ApiError::not_acceptable());
        }
        let endpoint = self
            .target
            .endpoint()
            .ok_or_else(ApiError::path_not_found)?;
        if self.target.subresource.is_some()
            && !matches!(self.verb, Verb::Get | Verb::Update | Verb::Patch)
        {
            return Err(ApiError::method_not_supported(
                endpoint.group_resource,
                self.verb.as_str(),
            ));
        }
        let store = &self.shared.store;
        let place = Place {
            endpoint,
            namespace: self.target.namespace.clone().unwrap_or_default(),
            name: self.target.name.clone().unwrap_or_default(),
            status: self.target.subresource.is_some(),
        };
        match self.verb {
            Verb::List => self.list(endpoint, raw),
            Verb::Watch => self.watch(endpoint, raw),
            Verb::Get => {
                let object = store.read(endpoint.resource, &(place.namespace, place.name.clone()));
                let object = object
                    .ok_or_else(|| ApiError::not_found(endpoint.group_resource, &place.name))?;
                Ok(show(endpoint, StatusCode::OK, &object))
            }
            Verb::Create if endpoint.resource.is_namespaced() && place.namespace.is_empty() => {
                Err(ApiError::method_not_supported(
                    endpoint.group_resource,
                    "create without a namespace",
                ))
            }
            Verb::Create => {
                let created = write::create(store, place, self.json_body(body)?)?;
                Ok(show(endpoint, StatusCode::CREATED, &created))
            }
            Verb::Update => {
                let (updated, created) = write::replace(store, &place, self.json_body(body)?)?;
                let code = if created {
                    StatusCode::CREATED
                } else {
                    StatusCode::OK
                };
                Ok(show(endpoint, code, &updated))
            }
            Verb::Patch => {
                let patch_type = PatchType::of(self.media_type())
                    .ok_or_else(|| ApiError::unsupported_media_type(&PatchType::ACCEPTED))?;
                let patched = write::patch(store, &place, patch_type, parse(body)?)?;
                Ok(show(endpoint, StatusCode::OK, &patched))
            }
            Verb::Delete => self.delete(&place, body),
            Verb::DeleteCollection => Err(ApiError::method_not_supported(
                endpoint.group_resource,
                "deletecollection",
            )),
        }
    }

    /// Lists are given whole: `limit` is taken as the upper bound that the real server may ignore too (it does for
    /// lists from its watch cache), so no continue token is ever given out.
    fn list(&self, endpoint: Endpoint, raw: &RawListOptions) -> Result<Response, ApiError> {
        let options = ListOptions::parse(endpoint.resource, raw)?;
        let (version, objects) = self
            .shared
            .store
            .list(endpoint.resource, self.target.namespace.as_deref());
        if let Some(wanted) = options.version.filter(|wanted| *wanted > version) {
            return Err(ApiError::version_in_the_future(wanted, version));
        }
        let selected = objects
            .iter()
            .filter(|object| options.selector.matches(object));
        let items: Vec<Value> = selected.map(|object| endpoint.outward(object)).collect();
        let list = json!({
            "kind": format!("{}List", endpoint.kind), "apiVersion": endpoint.group_version,
            "metadata": {"resourceVersion": version.to_string()}, "items": items,
        });
        Ok(json_response(StatusCode::OK, &list))
    }

    fn watch(&self, endpoint: Endpoint, raw: &RawListOptions) -> Result<Response, ApiError> {
        let options = ListOptions::parse(endpoint.resource, raw)?;
        let Ok(permit) = Arc::clone(&self.shared.watches).try_acquire_owned() else {
            self.shared.watches_refused.fetch_add(1, Ordering::Relaxed);
            return Err(ApiError::too_many_watches());
        };
        let room = watch::Room {
            store: Arc::clone(&self.shared.store),
            bookmark_period: self.shared.bookmark_period,
            stopping: self.shared.stopping.clone(),
            permit,
        };
        Ok(watch::begin(
            room,
            endpoint,
            self.target.namespace.clone(),
            options,
        ))
    }

    /// A deleted Pod is answered with itself, anything else with a Status (`ReturnDeletedObject`).
    fn delete(&self, place: &Place, body: &Bytes) -> Result<Response, ApiError> {
        let endpoint = place.endpoint;
        if endpoint.resource == Resource::Namespaces {
            return Err(ApiError::method_not_supported(
                endpoint.group_resource,
                "delete",
            ));
        }
        let options = if body.is_empty() {
            Value::Null
        } else {
            self.json_body(body)?
        };
        let deleted = write::delete(&self.shared.store, place, &options)?;
        if endpoint.resource == Resource::Pods {
            return Ok(show(endpoint, StatusCode::OK, &deleted));
        }
        let (plural, group) = endpoint
            .group_resource
            .split_once('.')
            .unwrap_or((endpoint.group_resource, ""));
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": place.name, "group": group, "kind": plural, "uid": deleted["metadata"]["uid"]},
        });
        Ok(json_response(StatusCode::OK, &status))
    }

    /// The real server reads YAML, CBOR and Protobuf too; a body without a type is JSON for both.
    fn json_body(&self, body: &Bytes) -> Result<Value, ApiError> {
        match self.media_type() {
            "" | "application/json" => parse(body),
            _ => Err(ApiError::unsupported_media_type(&["application/json"])),
        }
    }

    fn media_type(&self) -> &str {
        text_of(self.headers, header::CONTENT_TYPE)
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
    }
}

fn verb_of(method: &Method, named: bool, is_watch: bool) -> Option<Verb> {
    match (method.as_str(), named) {
        ("GET", _) if is_watch => Some(Verb::Watch),
        ("GET", true) => Some(Verb::Get),
        ("GET", false) => Some(Verb::List),
        ("POST", false) => Some(Verb::Create),
        ("PUT", true) => Some(Verb::Update),
        ("PATCH", true) => Some(Verb::Patch),
        ("DELETE", true) => Some(Verb::Delete),
        ("DELETE", false) => Some(Verb::DeleteCollection),
        _ => None,
    }
}

/// The paths beside the resources that clients look at.
fn without_resource(parts: &Parts) -> Response {
    match parts.uri.path() {
        "/healthz" | "/livez" | "/readyz" => "ok".into_response(),
        "/version" => {
            let version = json!({
                "major": "1", "minor": "37", "gitVersion": "v1.37.2+swimlet-standin", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            });
            json_response(StatusCode::OK, &version)
        }
        _ => ApiError::path_not_found().into_response(),
    }
}

fn show(endpoint: Endpoint, code: StatusCode, object: &Value) -> Response {
    json_response(code, &endpoint.outward(object))
}

fn parse(body: &Bytes) -> Result<Value, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))
}

/// Plain JSON objects are all there is: no tables, no partial metadata, no Protobuf.
fn accepts_json(accept: &str) -> bool {
    let fits = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        matches!(media_type, "application/json" | "application/*" | "*/*")
            && !parts.any(|parameter| parameter.starts_with("as="))
    };
    accept.is_empty() || accept.split(',').any(fits)
}

fn text_of(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}
