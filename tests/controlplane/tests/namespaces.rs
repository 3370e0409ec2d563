//! The rig itself, with nodes: needs root, iproute2 and nftables.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail as the test does, by panicking"
)]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use swimlet_rig::{ControlPlane, Direction, Host, Node, NodeSpec, Options, User, eventually};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Far more than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long a port must be quiet to be called silent: a living one on this
/// machine answers within a millisecond.
const SILENCE: Duration = Duration::from_secs(2);

/// What a TCP port says to a connection attempt.
#[derive(Debug, PartialEq, Eq)]
enum Port {
    Accepts,
    Refuses,
    Silent,
}

async fn port(address: Ipv4Addr, port: u16) -> Port {
    let address = SocketAddr::from((address, port));
    match timeout(SILENCE, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Port::Accepts,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => Port::Refuses,
        // The neighbour cannot be resolved any more: no packet came back.
        Ok(Err(_)) | Err(_) => Port::Silent,
    }
}

/// A port that answers does so soon, but on a busy machine not always at once.
async fn port_comes_to(address: Ipv4Addr, number: u16, wanted: Port) {
    let what = format!("port {number} of {address}: {wanted:?}");
    eventually(DEADLINE, &what, async || {
        let seen = port(address, number).await;
        anyhow::ensure!(seen == wanted, "{seen:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}

async fn two_nodes() -> (ControlPlane, Vec<Node>) {
    let control_plane = ControlPlane::start(Options::namespaces()).await.unwrap();
    let specs = [NodeSpec::new("a").zone("z1"), NodeSpec::new("b").zone("z2")];
    let nodes = control_plane.add_nodes(&specs).await.unwrap();
    (control_plane, nodes)
}

/// The HTTP status of the kubelet's /healthz for an anonymous client that
/// cannot check its certificate, as a verifier of the product cannot.
async fn anonymous_healthz(node: &Node) -> u16 {
    let url = format!("https://{}:{}", node.address(), Node::KUBELET_PORT);
    let mut config = kube::Config::new(url.parse().unwrap());
    config.accept_invalid_certs = true;
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let request = http::Request::get("/healthz").body(Vec::new()).unwrap();
    match client.request_text(request).await {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("unexpected answer: {other:?}"),
    }
}

/// The first line that the health check on the node's own loopback answers.
fn loopback_healthz(node: &Node) -> String {
    let port = Node::HEALTHZ_PORT;
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3; head -n 1 <&3"
    );
    node.run(Command::new("bash").args(["-c", &script]))
        .unwrap()
}

/// Whether a packet of `host` reaches `target` and an answer comes back within
/// a second: nothing listens there, so the answer is an RST.
fn reaches(host: &Host, target: &Host) -> bool {
    let script = format!(
        "timeout 1 bash -c 'exec 3<>/dev/tcp/{}/9' 2>&1 | grep -q refused",
        target.address()
    );
    host.run(Command::new("bash").args(["-c", &script])).is_ok()
}

/// Whether UDP of the test reaches `target`: nothing listens there, so the
/// answer is an ICMP "port unreachable".
fn udp_reaches(target: &Host) -> bool {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((target.address(), 9)).unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket.send(b"?").unwrap();
    let error = socket.recv(&mut [0; 1]).unwrap_err();
    error.kind() == std::io::ErrorKind::ConnectionRefused
}

async fn comes_to_reach_by_udp(target: &Host) {
    eventually(DEADLINE, "UDP to pass", async || {
        Ok(udp_reaches(target).then_some(()))
    })
    .await
    .unwrap();
}

/// [`reaches`] within a generous time: a cable takes a moment to come up.
async fn comes_to_reach(host: &Host, target: &Host) {
    let what = format!("{} to reach {}", host.name(), target.name());
    eventually(DEADLINE, &what, async || {
        Ok(reaches(host, target).then_some(()))
    })
    .await
    .unwrap();
}

async fn make_service(client: &Client) {
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let service = json!({
        "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] },
    });
    let service = serde_json::from_value(service).unwrap();
    services
        .create(&PostParams::default(), &service)
        .await
        .unwrap();
}

async fn make_pod(client: &Client, node: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = json!({
        "metadata": { "name": format!("web-{node}"), "labels": { "app": "web" } },
        "spec": {
            "nodeName": node,
            "serviceAccountName": "default",
            "containers": [{ "name": "web", "image": "web" }],
        },
    });
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

/// The nodes of the Service's ready endpoints.
async fn ready_endpoints(client: &Client) -> anyhow::Result<Vec<String>> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let of_web = ListParams::default().labels("kubernetes.io/service-name=web");
    let mut nodes: Vec<_> = slices
        .list(&of_web)
        .await?
        .into_iter()
        .flat_map(|slice| slice.endpoints)
        .filter(|endpoint| {
            endpoint
                .conditions
                .as_ref()
                .is_some_and(|c| c.ready == Some(true))
        })
        .filter_map(|endpoint| endpoint.node_name)
        .collect();
    nodes.sort();
    Ok(nodes)
}

/// Guards that the hollow nodes are what the product will meet: addresses and
/// ports of their own, TLS and authentication, the bare health check, pods that
/// become Ready and reach their Service.
#[tokio::test]
async fn hollow_nodes_look_like_real_ones() {
    let (control_plane, nodes) = two_nodes().await;
    let client = control_plane.client(&User::Admin).await.unwrap();
    let api: Api<ApiNode> = Api::all(client.clone());
    for (node, zone) in nodes.iter().zip(["z1", "z2"]) {
        let seen = api.get(node.name()).await.unwrap();
        let labels = seen.metadata.labels.unwrap();
        assert_eq!(labels["topology.kubernetes.io/zone"], zone);
        let status = seen.status.unwrap();
        let addresses = status.addresses.unwrap();
        let internal = addresses.iter().find(|a| a.type_ == "InternalIP").unwrap();
        assert_eq!(internal.address, node.address().to_string());
        let endpoints = status.daemon_endpoints.unwrap();
        assert_eq!(endpoints.kubelet_endpoint.unwrap().port, 10250);

        assert_eq!(anonymous_healthz(node).await, 401);
        assert_eq!(loopback_healthz(node).trim(), "HTTP/1.0 200 OK");
    }

    make_service(&client).await;
    for node in &nodes {
        make_pod(&client, node.name()).await;
    }
    let both = eventually(DEADLINE, "both pods to be endpoints", async || {
        let nodes = ready_endpoints(&client).await?;
        Ok((nodes.len() == 2).then_some(nodes))
    });
    assert_eq!(both.await.unwrap(), ["a", "b"]);

    // Enrolment rests on this: the token of a pod names the pod's node.
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = pods.get("web-a").await.unwrap();
    let token = control_plane
        .token("default", "default", &["swimlet"], Some(&pod))
        .await
        .unwrap();
    let review = json!({
        "metadata": {},
        "spec": { "token": token, "audiences": ["swimlet"] },
    });
    let reviews: Api<TokenReview> = Api::all(client);
    let review = serde_json::from_value(review).unwrap();
    let review = reviews
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    let extra = review.status.unwrap().user.unwrap().extra.unwrap();
    assert_eq!(extra["authentication.kubernetes.io/node-name"], ["a"]);
}

/// Guards the difference that the product turns on: a dead host is silent, a
/// living one whose kubelet died answers RST, a frozen kubelet still accepts.
#[tokio::test]
async fn a_dead_host_is_silent_and_a_living_one_refuses() {
    let (control_plane, nodes) = two_nodes().await;
    let [a, b] = &nodes[..] else {
        unreachable!("two nodes were made")
    };
    let kubelet = Node::KUBELET_PORT;
    port_comes_to(a.address(), kubelet, Port::Accepts).await;

    a.kubelet().freeze().unwrap();
    port_comes_to(a.address(), kubelet, Port::Accepts).await;
    a.kubelet().kill().unwrap();
    port_comes_to(a.address(), kubelet, Port::Refuses).await;
    a.restart_kubelet().unwrap();
    port_comes_to(a.address(), kubelet, Port::Accepts).await;

    b.suspend().unwrap();
    assert_eq!(port(b.address(), kubelet).await, Port::Silent);
    assert!(b.kubelet().is_running());
    b.resume().unwrap();
    port_comes_to(b.address(), kubelet, Port::Accepts).await;

    let sleeper = b
        .spawn("sleeper", Command::new("sleep").arg("1000"))
        .unwrap();
    b.die().unwrap();
    assert!(!sleeper.is_running());
    assert!(!b.kubelet().is_running());
    assert_eq!(port(b.address(), kubelet).await, Port::Silent);
    controllers_taint(&control_plane, b).await;
}

/// The controllers are there and look: a node whose Ready is Unknown is tainted.
async fn controllers_taint(control_plane: &ControlPlane, node: &Node) {
    let nodes: Api<ApiNode> = Api::all(control_plane.client(&User::Admin).await.unwrap());
    let unknown = Patch::Strategic(json!({
        "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "reason": "Test" }] },
    }));
    let params = PatchParams::default();
    nodes
        .patch_status(node.name(), &params, &unknown)
        .await
        .unwrap();
    eventually(DEADLINE, "the unreachable:NoExecute taint", async || {
        let taints = nodes
            .get(node.name())
            .await?
            .spec
            .and_then(|spec| spec.taints);
        let found = taints.unwrap_or_default().into_iter().any(|taint| {
            taint.key == "node.kubernetes.io/unreachable" && taint.effect == "NoExecute"
        });
        Ok(found.then_some(()))
    })
    .await
    .unwrap();
}

/// Guards the network's faults: each does what it says, and heals.
#[tokio::test]
async fn faults_of_the_network_come_and_go() {
    let control_plane = ControlPlane::start(Options::namespaces()).await.unwrap();
    let hosts = ["a", "b"].map(|name| control_plane.add_host(name).unwrap());
    let [a, b] = &hosts;
    let switch = control_plane.host();
    comes_to_reach(a, b).await;
    comes_to_reach(switch, b).await;

    b.cut_from(&[a.address()]).unwrap();
    assert!(!reaches(a, b));
    comes_to_reach(switch, b).await;
    b.heal().unwrap();
    comes_to_reach(a, b).await;

    for direction in [Direction::In, Direction::Out] {
        b.mute(direction).unwrap();
        assert!(!reaches(a, b), "{direction:?}");
        b.heal().unwrap();
        comes_to_reach(a, b).await;
    }

    b.block_tcp(9).unwrap();
    assert!(!reaches(a, b));
    b.heal().unwrap();
    comes_to_reach(a, b).await;

    b.reject_tcp(9).unwrap();
    comes_to_reach(a, b).await;
    b.heal().unwrap();

    comes_to_reach_by_udp(b).await;
    b.block_udp(9).unwrap();
    assert!(!udp_reaches(b));
    b.heal().unwrap();
    comes_to_reach_by_udp(b).await;

    b.link_down().unwrap();
    assert!(!reaches(a, b));
    b.link_up().unwrap();
    comes_to_reach(a, b).await;
}

/// Guards the machine: nothing of a rig survives it.
#[tokio::test]
async fn nothing_is_left_behind() {
    let control_plane = ControlPlane::start(Options::namespaces()).await.unwrap();
    let host = control_plane.add_host("a").unwrap();
    let sleeper = host
        .spawn("sleeper", Command::new("sleep").arg("1000"))
        .unwrap();
    let folder = control_plane.folder().to_owned();
    let rig = folder.file_name().unwrap().to_str().unwrap();
    let traces = traces_of(rig);
    for expected in [
        format!("netns swimlet-{rig}-control-plane"),
        format!("netns swimlet-{rig}-a"),
        format!("files swimlet-{rig}-a"),
        format!("link sw{rig}"),
    ] {
        assert!(traces.contains(&expected), "{expected} not in {traces:?}");
    }
    drop(control_plane);
    assert!(!sleeper.is_running());
    assert!(!folder.exists());
    assert_eq!(traces_of(rig), Vec::<String>::new());
}

/// What the rig named `rig` has on this machine outside its folder.
fn traces_of(rig: &str) -> Vec<String> {
    let mut traces = Vec::new();
    for (kind, folder, prefix) in [
        ("netns", "/run/netns", format!("swimlet-{rig}-")),
        ("files", "/etc/netns", format!("swimlet-{rig}-")),
        ("link", "/sys/class/net", format!("sw{rig}")),
    ] {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.starts_with(&prefix) {
                traces.push(format!("{kind} {name}"));
            }
        }
    }
    traces
}

/// The path of a file by which [`victim`] tells its rig, and that it is to be one.
const VICTIM: &str = "SWIMLET_RIG_VICTIM";

/// Not a guard by itself: the process that [`a_killed_test_leaves_nothing`]
/// runs and kills.
#[tokio::test]
async fn victim() {
    let Some(file) = std::env::var_os(VICTIM) else {
        return;
    };
    let control_plane = ControlPlane::start(Options::namespaces()).await.unwrap();
    let host = control_plane.add_host("a").unwrap();
    let mut processes = control_plane.host().running();
    processes.push(
        host.spawn("sleeper", Command::new("sleep").arg("1000"))
            .unwrap(),
    );
    let pids: Vec<_> = processes.iter().map(|process| process.pid()).collect();
    let told = json!({ "folder": control_plane.folder(), "pids": pids });
    let unfinished = Path::new(&file).with_extension("new");
    std::fs::write(&unfinished, told.to_string()).unwrap();
    std::fs::rename(unfinished, file).unwrap();
    std::future::pending::<()>().await;
}

/// Guards the machine against a test that is killed: its processes die with
/// it, and the next rig removes its namespaces and files.
#[tokio::test]
async fn a_killed_test_leaves_nothing() {
    let file = std::env::temp_dir().join(format!("swimlet-rig-victim-{}", std::process::id()));
    // It dies with this test's thread, should the test fail before it kills it.
    let mut victim = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "victim"])
        .env(VICTIM, &file)
        .spawn()
        .unwrap();
    let told = eventually(2 * DEADLINE, "the victim's rig", async || {
        Ok(Some(std::fs::read(&file)?))
    })
    .await;
    let told: serde_json::Value = serde_json::from_slice(&told.unwrap()).unwrap();
    let folder = Path::new(told["folder"].as_str().unwrap());
    let rig = folder.file_name().unwrap().to_str().unwrap();
    assert!(folder.exists());
    assert_ne!(traces_of(rig), Vec::<String>::new());
    victim.kill().unwrap();
    victim.wait().unwrap();
    std::fs::remove_file(&file).unwrap();

    let pids: Vec<_> = told["pids"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|pid| pid.as_u64())
        .collect();
    assert_eq!(
        pids.len(),
        4,
        "etcd, API server, controller manager, sleeper"
    );
    eventually(
        DEADLINE,
        "the victim's processes to die with it",
        async || {
            let alive = pids
                .iter()
                .any(|pid| Path::new(&format!("/proc/{pid}")).exists());
            Ok((!alive).then_some(()))
        },
    )
    .await
    .unwrap();

    // Any start sweeps; one without namespaces is the quickest.
    drop(ControlPlane::start(Options::machine()).await.unwrap());
    assert!(!folder.exists());
    assert_eq!(traces_of(rig), Vec::<String>::new());
}
