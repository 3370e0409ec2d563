//! An in-process stand-in for the Kubernetes API server, for the demo and for fast tests.
//!
//! [`Standin::start`] serves nodes, pods, events, leases and namespaces over real HTTP/1.1 on loopback, to the same
//! kube client that runs in production. Around that it offers what tests need: a request log ([`Standin::requests`]),
//! staged faults ([`Standin::hold`], [`Standin::answer_next`], [`Standin::away`], [`Standin::compact`]), and hollow
//! kubelets ([`Standin::kubelet`]) that treat their Node, Lease and Pods as a kubelet does and can die, silently or not.
//!
//! # What it promises
//!
//! The behaviour of kube-apiserver 1.37 in what swimlet depends on; the code names the Go source it follows:
//!
//! - **Writes**: one resource version counter; a stale version is 409; a write that changes nothing is not written and
//!   keeps its version; `status` and the rest do not touch one another; `metadata.uid` is a precondition in a PUT (409)
//!   and an immutable field in a PATCH (422, but 409 first if the version is stale too, as it is for a Node re-created
//!   under its old name); a PUT without a version is refused for Leases and unconditional elsewhere; a PUT creates
//!   missing Leases and Events only.
//! - **Strategic merge patch** with the merge keys of `k8s.io/api` and its directives (`$patch`, `$setElementOrder`,
//!   `$deleteFromPrimitiveList`, `$retainKeys`); JSON merge patch, which replaces lists.
//! - **Watches**: the state first when no version is given, changes from a version otherwise, selectors seen as
//!   `ADDED`/`DELETED`, bookmarks, watch-lists (`sendInitialEvents`), `timeoutSeconds`, and 410 as an `ERROR` event when
//!   the version is older than the history.
//! - **Errors** are `metav1.Status` with reason, code and details; media types are checked (415, 406), bodies bounded.
//! - **Events** are one storage with two spellings, `v1` and `events.k8s.io/v1`, and are validated as there.
//!
//! # Where it differs from the real server
//!
//! - No authentication, authorization, admission (but for the existence of a namespace), TLS, discovery or OpenAPI.
//! - No server-side apply and no JSON patch (415), hence no `managedFields`; no `dryRun`; no `labelSelector` (400).
//! - Lists are always whole: `limit` is ignored, `continue` refused (400), `resourceVersionMatch=Exact` too.
//! - Resource version 0 reads the newest state, never an older cache; a list that must be newer than the newest version
//!   is refused at once (504) instead of after three seconds.
//! - Deletion is immediate: no grace period, finalizers or garbage collection, so a Lease outlives its Node. Namespaces
//!   cannot be deleted, nor can collections.
//! - Objects are decoded as the types of `k8s-openapi` (1.33): fields that are newer are dropped, and the validation is
//!   that of Leases, Events, names and metadata only. There is no defaulting beyond a new Pod's status (always
//!   `BestEffort`), and no `generation`.
//! - The syntax of labels and annotations is not checked, nor which fields of a Node or a Pod may change.
//! - A request is cancelled when its client hangs up while it is held by a [`Hold`]; the real server would carry on.
//! - No controllers: no taints, no endpoint slices, no evictions.

mod error;
mod faults;
mod ids;
mod kubelet;
mod listen;
mod patch;
mod query;
mod requests;
mod resource;
mod server;
mod standin;
mod store;
mod watch;
mod write;

pub use faults::{Answer, Hold, Matcher};
pub use http::StatusCode;
pub use kubelet::{HollowKubelet, HollowPod, KubeletError, KubeletSpec, PortError};
pub use requests::{RequestRecord, Verb};
pub use standin::{Counters, Options, Standin, StartError};
