//! The main job on a real control plane: etcd, kube-apiserver, kube-controller-manager
//! and kubelets, each node in a network namespace with its agent, three aggregators
//! with the shipped manifests' permissions, all from the built binary.
//!
//! One control plane serves all scenarios of a mode, because its start is what takes
//! long. Scenarios run one after the other, and each leaves every node Ready.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod deaths;
mod faults;
mod observe;
mod quiet;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use world::{Mode, Placing, World};

/// A control plane that is started by the first scenario that needs it. A scenario
/// that fails takes it down, so that the next begins anew.
struct Shared {
    mode: Mode,
    nodes: usize,
    placing: Placing,
    world: Mutex<Option<World>>,
    /// Starts that are left: one that fails is not tried for each scenario again.
    starts: AtomicUsize,
}

/// A scenario that failed takes its control plane with it.
const STARTS_MAX: usize = 3;

type Scenario = fn(World) -> std::pin::Pin<Box<dyn Future<Output = World>>>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Scenarios share a control plane.
    arguments.test_threads = Some(1);
    let runtime = Arc::new(Runtime::new().expect("a tokio runtime"));
    let enforce = Arc::new(Shared::new(Mode::Enforce, 6, Placing::OnNodes));
    let observe = Arc::new(Shared::new(Mode::Observe, 4, Placing::Apart));
    let trial = |name: &str, shared: &Arc<Shared>, scenario: Scenario| {
        let (runtime, shared) = (runtime.clone(), shared.clone());
        Trial::test(name, move || runtime.block_on(shared.run(scenario)))
    };
    let trials = vec![
        trial("nothing_is_written_in_steady_state", &enforce, |w| {
            Box::pin(quiet::steady_state(w))
        }),
        trial("a_dead_node_is_written_and_its_pods_leave", &enforce, |w| {
            Box::pin(deaths::death(w))
        }),
        trial(
            "the_kubelet_brings_it_back_and_a_second_death_is_written_again",
            &enforce,
            |w| Box::pin(deaths::recovery_and_second_death(w)),
        ),
        trial(
            "scenario_13_an_agent_restarts_or_dies_alone",
            &enforce,
            |w| Box::pin(quiet::agent_restart(w)),
        ),
        trial(
            "scenario_31_agent_and_kubelet_restart_together",
            &enforce,
            |w| Box::pin(quiet::both_restart(w)),
        ),
        trial(
            "scenario_21_the_leader_is_killed_and_a_death_is_still_written_once",
            &enforce,
            |w| Box::pin(deaths::leader_killed(w)),
        ),
        trial(
            "scenario_37_cut_off_from_peers_but_not_from_the_api_server",
            &enforce,
            |w| Box::pin(faults::cut_off_from_peers(w)),
        ),
        trial(
            "observe_changes_nothing_and_says_what_it_would_do",
            &observe,
            |w| Box::pin(observe::death(w)),
        ),
    ];
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.block_on(async {
        drop(enforce.world.lock().await.take());
        drop(observe.world.lock().await.take());
    });
    conclusion.exit_code()
}

impl Shared {
    fn new(mode: Mode, nodes: usize, placing: Placing) -> Self {
        Self {
            mode,
            nodes,
            placing,
            world: Mutex::new(None),
            starts: AtomicUsize::new(STARTS_MAX),
        }
    }

    async fn run(&self, scenario: Scenario) -> Result<(), Failed> {
        let mut place = self.world.lock().await;
        let world = match place.take() {
            Some(world) => world,
            None if self.starts.fetch_sub(1, Ordering::Relaxed) > 0 => {
                World::start(self.mode, self.nodes, self.placing).await
            }
            None => return Err(Failed::from("too many control planes were lost before")),
        };
        *place = Some(scenario(world).await);
        Ok(())
    }
}
