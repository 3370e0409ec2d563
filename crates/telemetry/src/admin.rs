//! The admin endpoint: plain HTTP for the kubelet's probes and for Prometheus.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use swimlet_protocol::Role;
use tokio::net::TcpListener;

use crate::catalogue;

/// Renders this process's metrics in Prometheus' text format.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

/// Named conditions that must all hold before `/readyz` says so.
///
/// Cheap to clone; the clones share their state.
#[derive(Clone, Default)]
pub struct Readiness(Arc<[Condition]>);

/// Why the admin endpoint did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve the admin endpoint at {address}: {source}; set admin-bind to a free address")]
pub struct BindError {
    address: SocketAddr,
    source: std::io::Error,
}

struct Condition {
    name: &'static str,
    holds: AtomicBool,
}

impl Metrics {
    /// Installs this process's metrics recorder, describes the catalogue, and says what and
    /// since when this process is.
    ///
    /// # Errors
    /// If a recorder was installed before.
    pub fn install(role: Role) -> Result<Self, BuildError> {
        let detection = Matcher::Full(catalogue::DETECTION.to_owned());
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(detection, &catalogue::DETECTION_BUCKETS)?
            .install_recorder()?;
        catalogue::describe();
        let version = env!("CARGO_PKG_VERSION");
        metrics::gauge!(catalogue::BUILD_INFO, "version" => version, "role" => command(role))
            .set(1.0);
        metrics::gauge!(catalogue::START_TIME).set(unix_time());
        catalogue::start_at_zero(role);
        Ok(Self(handle))
    }

    /// All metrics, as Prometheus scrapes them.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.run_upkeep();
        self.0.render()
    }
}

impl Readiness {
    /// Conditions by name; none holds yet.
    #[must_use]
    pub fn new(names: &[&'static str]) -> Self {
        let condition = |&name| Condition {
            name,
            holds: AtomicBool::new(false),
        };
        Self(names.iter().map(condition).collect())
    }

    /// Says whether the condition `name` holds. An unknown name changes nothing.
    pub fn set(&self, name: &str, holds: bool) {
        if let Some(condition) = self.0.iter().find(|c| c.name == name) {
            condition.holds.store(holds, Ordering::Relaxed);
        }
    }

    /// The conditions that do not hold, in the order they were named.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        self.0
            .iter()
            .filter(|c| !c.holds.load(Ordering::Relaxed))
            .map(|c| c.name)
            .collect()
    }
}

/// Binds the admin endpoint.
///
/// # Errors
/// If the address cannot be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError { address, source })
}

/// `/livez`, `/readyz` and `/metrics`; more routes may be merged in.
pub fn router(metrics: Metrics, readiness: Readiness) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(scrape).with_state(metrics))
}

/// Serves until `stop` resolves.
///
/// # Errors
/// If the listener fails.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(stop)
        .await
}

/// The command that the role runs as.
const fn command(role: Role) -> &'static str {
    match role {
        Role::Agent => "agent",
        Role::Aggregator => "aggregator",
    }
}

/// Seconds since 1970, as Prometheus counts time; 0 on a host whose clock is before that.
#[expect(
    clippy::disallowed_methods,
    reason = "shown to people and compared with Prometheus' time; nothing is decided by it"
)]
fn unix_time() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

async fn readyz(State(readiness): State<Readiness>) -> impl IntoResponse {
    let missing = readiness.missing();
    if missing.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        let body = format!("not ready: {}\n", missing.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, body)
    }
}

async fn scrape(State(metrics): State<Metrics>) -> impl IntoResponse {
    const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], metrics.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate sees the first verdict of a process only if its counter was there before.
    #[test]
    fn an_aggregator_shows_its_counters_from_the_start() {
        let metrics = Metrics::install(Role::Aggregator).unwrap();
        let page = metrics.render();
        for line in [
            "swimlet_decisions_total{verdict=\"Unreachable\"} 0",
            "swimlet_notices_total{kind=\"taken_back\"} 0",
            "swimlet_detection_seconds_count{verdict=\"Unreachable\"} 0",
            "swimlet_aggregator_leader 0",
            "role=\"aggregator\"",
        ] {
            assert!(page.contains(line), "{line} is missing in:\n{page}");
        }
        assert!(!page.contains("swimlet_agent_check_passing{"), "{page}");
        let started = page
            .lines()
            .find_map(|line| line.strip_prefix("swimlet_start_time_seconds "));
        assert!(started.unwrap().parse::<f64>().unwrap() > 1e9, "{page}");
    }

    #[test]
    fn readiness_names_what_is_missing() {
        let readiness = Readiness::new(&["mesh", "api"]);
        assert_eq!(readiness.missing(), ["mesh", "api"]);
        readiness.set("mesh", true);
        readiness.set("no such condition", true);
        assert_eq!(readiness.missing(), ["api"]);
        readiness.clone().set("api", true);
        assert!(readiness.missing().is_empty());
    }
}
