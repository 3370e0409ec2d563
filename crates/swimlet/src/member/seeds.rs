//! Looking seeds up: DNS names change, and DNS may be away.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::config::Seed;

/// Between two look-ups.
const INTERVAL: Duration = Duration::from_secs(15);
/// For one name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Most addresses that all names together give: a headless Service of 5,000
/// pods gives thousands, and a few are enough to join.
const ADDRESSES_MAX: usize = 64;

/// Seeds that are addresses already, for the first join.
pub(crate) fn literal(seeds: &[Seed]) -> Vec<SocketAddr> {
    let address = |seed: &Seed| {
        let ip: IpAddr = seed.host.parse().ok()?;
        Some(SocketAddr::new(ip, seed.port))
    };
    seeds.iter().filter_map(address).collect()
}

/// Looks all seeds up again and again, and sends what changed. Ends when nobody listens.
///
/// With literal addresses alone there is nothing to look up, and it ends at once.
pub(crate) async fn watch(seeds: Vec<Seed>, found: mpsc::Sender<Vec<SocketAddr>>) {
    if literal(&seeds).len() == seeds.len() {
        found.closed().await;
        return;
    }
    let mut last = Vec::new();
    loop {
        let addresses = look_up(&seeds).await;
        if !addresses.is_empty() && addresses != last {
            last.clone_from(&addresses);
            if found.send(addresses).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = sleep(INTERVAL) => {}
            () = found.closed() => return,
        }
    }
}

async fn look_up(seeds: &[Seed]) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for seed in seeds {
        let lookup = tokio::net::lookup_host((seed.host.as_str(), seed.port));
        match timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(Ok(found)) => addresses.extend(found),
            Ok(Err(error)) => debug!(%seed, %error, "the seed's name has no address"),
            Err(_) => debug!(%seed, "no answer from DNS"),
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    addresses
}
