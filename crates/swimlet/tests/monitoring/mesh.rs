//! Agents and aggregators as processes, each node with a loopback address of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use swimlet_standin::{HollowKubelet, HollowPod, KubeletSpec, Options, Standin};
use swimlet_transport::ca::Authority;

pub(crate) const NODES: usize = 6;
pub(crate) const AGGREGATORS: usize = 3;
const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

/// What uses another part ends before it.
pub(crate) struct Mesh {
    agents: Vec<Process>,
    aggregators: Vec<Process>,
    kubelets: Vec<HollowKubelet>,
    standin: Standin,
    folder: Folder,
    authority: Authority,
}

/// A process that ends with its owner, and with the thread of the test.
pub(crate) struct Process(Child);

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Mesh {
    pub(crate) async fn start() -> Self {
        let options = Options {
            namespaces: vec!["swimlet-system".to_owned()],
            ..Options::default()
        };
        let folder = format!("swimlet-monitoring-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(folder));
        std::fs::create_dir_all(&folder.0).unwrap();
        let mut mesh = Self {
            standin: Standin::start(options).await.unwrap(),
            kubelets: Vec::new(),
            agents: Vec::new(),
            aggregators: Vec::new(),
            folder,
            authority: Authority::new(&"test".parse().unwrap()).unwrap(),
        };
        for index in 0..NODES {
            let kubelet = mesh.standin.kubelet(spec(index)).await.unwrap();
            mesh.kubelets.push(kubelet);
        }
        for index in 0..AGGREGATORS {
            let aggregator = mesh.aggregator(index);
            mesh.aggregators.push(aggregator);
        }
        for index in 0..NODES {
            let agent = mesh.agent(index);
            mesh.agents.push(agent);
        }
        mesh
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }

    pub(crate) fn prometheus_address(&self) -> SocketAddr {
        SocketAddr::new(address(usize::from(u8::MAX)), 9090)
    }

    /// The admin endpoints of all members.
    pub(crate) fn targets(&self) -> Vec<SocketAddr> {
        let agents = (0..NODES).map(|index| SocketAddr::new(address(index), 10_272));
        let aggregators = (0..AGGREGATORS).map(|index| SocketAddr::new(address(index), 10_273));
        agents.chain(aggregators).collect()
    }

    /// A node falls silent: its sockets stay, and nobody reads them.
    pub(crate) async fn kill(&self, index: usize) {
        self.agents[index].signal("STOP");
        self.kubelets[index].stop().await.unwrap();
    }

    pub(crate) async fn revive(&self, index: usize) {
        self.kubelets[index].resume().await.unwrap();
        self.agents[index].signal("CONT");
    }

    pub(crate) fn stop_agent(&self, index: usize) {
        self.agents[index].signal("STOP");
    }

    pub(crate) fn continue_agent(&self, index: usize) {
        self.agents[index].signal("CONT");
    }

    pub(crate) fn stop_aggregators(&self) {
        self.aggregators
            .iter()
            .for_each(|process| process.signal("STOP"));
    }

    pub(crate) fn continue_aggregators(&self) {
        self.aggregators
            .iter()
            .for_each(|process| process.signal("CONT"));
    }

    fn agent(&self, index: usize) -> Process {
        let mut command = self.member("agent", "node", index, 10_270);
        let ip = address(index);
        command
            .arg(format!("--admin-bind={ip}:10272"))
            .arg(format!("--kubelet-port={}", self.kubelets[index].port()))
            .arg(format!("--kubelet-healthz={ip}:10248"))
            .arg(format!("--api-server={}", self.standin.address()));
        Process::start(&command)
    }

    fn aggregator(&self, index: usize) -> Process {
        let kubeconfig = self.folder.0.join("kubeconfig");
        let server = self.standin.address();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'http://{server}'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let mut command = self.member("aggregator", "aggregator", index, 10_271);
        command
            .arg(format!("--admin-bind={}:10273", address(index)))
            .arg(format!("--node-name={}", name(index)))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg("--mode=enforce");
        Process::start(&command)
    }

    /// What the commands of all members have in common, their certificate included.
    fn member(&self, command: &str, role: &str, index: usize, port: u16) -> Command {
        let (name, ip) = (name(index), address(index));
        let identity = format!("spiffe://test/{role}/{name}").parse().unwrap();
        let issued = self.authority.issue(&identity, MONTH).unwrap();
        let file = |what: &str, content: &str| {
            let path = self.folder.0.join(format!("{role}-{name}.{what}"));
            std::fs::write(&path, content).unwrap();
            path.display().to_string()
        };
        let seeds: Vec<_> = (0..AGGREGATORS)
            .map(|index| format!("{}:10271", address(index)))
            .collect();
        let mut swimlet = Command::new(env!("CARGO_BIN_EXE_swimlet"));
        swimlet
            .arg(command)
            .arg("--cluster-id=test")
            .arg(format!("--name={name}"))
            .arg(format!("--zone={}", zone(index)))
            .arg(format!("--advertise={ip}"))
            .arg(format!("--mesh-bind={ip}:{port}"))
            .arg(format!("--seeds={}", seeds.join(",")))
            .arg(format!(
                "--cert-file={}",
                file("crt", &issued.certificate_pem)
            ))
            .arg(format!("--key-file={}", file("key", &issued.key_pem)))
            .arg(format!("--ca-file={}", file("ca", &self.authority.pem())))
            .arg("--log-level=warn");
        swimlet
    }
}

impl Process {
    /// Starts `command` so that the kernel ends it with the test, whatever ends that.
    pub(crate) fn start(command: &Command) -> Self {
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null())
            .spawn();
        let program = command.get_program().display();
        Self(child.unwrap_or_else(|error| {
            panic!("cannot start {program} through setpriv (util-linux): {error}")
        }))
    }

    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.unwrap().success(), "kill -s {name} {pid}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn spec(index: usize) -> KubeletSpec {
    let name = name(index);
    KubeletSpec {
        zone: Some(zone(index).to_owned()),
        address: address(index),
        pods: vec![HollowPod {
            namespace: "default".to_owned(),
            name: format!("web-{name}"),
        }],
        ..KubeletSpec::new(name)
    }
}

fn name(index: usize) -> String {
    format!("node-{}", index + 1)
}

fn zone(index: usize) -> &'static str {
    ["zone-a", "zone-b", "zone-c"][index % 3]
}

/// Loopback addresses of this run's own, beside those of the demo (127.64 to 127.191).
fn address(index: usize) -> IpAddr {
    let octet = u8::try_from(200 + std::process::id() % 50).unwrap();
    let last = u8::try_from((index + 1).min(254)).unwrap();
    Ipv4Addr::new(127, octet, 0, last).into()
}
