use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::json;
use swimlet_standin::{HollowKubelet, HollowPod, KubeletSpec, Matcher, Standin, Verb};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{eventually, nodes, ready, standin, unknown, within};

/// A kubelet in a hurry: what takes ten seconds in a cluster takes 20 ms.
fn hasty(name: &str) -> KubeletSpec {
    KubeletSpec {
        zone: Some("zone-a".into()),
        pods: vec![HollowPod {
            namespace: "default".into(),
            name: format!("{name}-pod"),
        }],
        period: Duration::from_millis(20),
        ..KubeletSpec::new(name)
    }
}

async fn started(standin: &Standin, name: &str) -> HollowKubelet {
    standin.kubelet(hasty(name)).await.expect("starts")
}

fn leases(standin: &Standin) -> Api<Lease> {
    Api::namespaced(standin.client().expect("client"), "kube-node-lease")
}

fn renewals(standin: &Standin, name: &str) -> usize {
    let renewal = Matcher::any()
        .verb(Verb::Update)
        .resource("leases")
        .name(name);
    standin
        .requests()
        .iter()
        .filter(|request| renewal.matches(request) && request.code == 200)
        .count()
}

fn pod_ready(pod: &Pod) -> Option<String> {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|c| c.type_ == "Ready")
        .map(|c| c.status.clone())
}

/// Guards what a registered kubelet looks like, which the aggregator's Node watch and the verifiers rely on.
#[tokio::test]
async fn a_kubelet_registers_its_node_its_lease_and_its_pods() {
    let standin = standin().await;
    let kubelet = started(&standin, "n1").await;
    let node = nodes(&standin).get("n1").await.expect("a Node");
    assert_eq!(node.labels()["topology.kubernetes.io/zone"], "zone-a");
    let condition = ready(&node);
    assert_eq!(condition.status, "True");
    assert!(condition.last_heartbeat_time.is_some() && condition.last_transition_time.is_some());
    let status = node.status.clone().expect("a status");
    let addresses = status.addresses.unwrap_or_default();
    assert!(
        addresses
            .iter()
            .any(|a| a.type_ == "InternalIP" && a.address == "127.0.0.1")
    );
    let endpoint = status
        .daemon_endpoints
        .and_then(|endpoints| endpoints.kubelet_endpoint)
        .expect("an endpoint");
    assert_eq!(endpoint.port, i32::from(kubelet.port()));
    assert_ne!(endpoint.port, 0);

    let lease = leases(&standin).get("n1").await.expect("a Lease");
    assert_eq!(lease.owner_references()[0].uid, node.uid().expect("a UID"));
    let spec = lease.spec.expect("a spec");
    assert_eq!(
        (spec.holder_identity.as_deref(), spec.lease_duration_seconds),
        (Some("n1"), Some(40))
    );
    assert!(spec.renew_time.is_some());
    let pods: Api<Pod> = Api::namespaced(standin.client().expect("client"), "default");
    assert_eq!(
        pod_ready(&pods.get("n1-pod").await.expect("a Pod")).as_deref(),
        Some("True")
    );
}

/// Guards the kubelet's word: it renews its Lease, takes back a foreign Unknown as a whole condition, and makes its
/// Pods ready again.
#[tokio::test]
async fn a_living_kubelet_takes_back_unknown_and_restores_its_pods() {
    let standin = standin().await;
    let _kubelet = started(&standin, "n1").await;
    let nodes = nodes(&standin);
    let first = renewals(&standin, "n1");
    eventually("three renewals", async || {
        (renewals(&standin, "n1") >= first + 3).then_some(())
    })
    .await;

    let pods: Api<Pod> = Api::namespaced(standin.client().expect("client"), "default");
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    pods.patch_status(
        "n1-pod",
        &PatchParams::default(),
        &Patch::Strategic(not_ready),
    )
    .await
    .expect("patches");
    let patch = Patch::Strategic(unknown(None));
    let written = nodes
        .patch_status("n1", &PatchParams::default(), &patch)
        .await
        .expect("patches");
    assert_eq!(ready(&written).status, "Unknown");
    let back = eventually("Ready=True again", async || {
        Some(nodes.get("n1").await.expect("reads")).filter(|node| ready(node).status == "True")
    })
    .await;
    assert_eq!(ready(&back).reason.as_deref(), Some("KubeletReady"));
    assert!(ready(&back).last_transition_time > ready(&written).last_transition_time);
    eventually("a Pod ready again", async || {
        let pod = pods.get("n1-pod").await.expect("reads");
        (pod_ready(&pod).as_deref() == Some("True")).then_some(())
    })
    .await;
    let takes_back = Matcher::any()
        .verb(Verb::Patch)
        .resource("nodes")
        .subresource("status")
        .user_agent("kubelet/n1");
    let count = standin
        .requests()
        .iter()
        .filter(|request| takes_back.matches(request))
        .count();
    assert_eq!(count, 1, "once, and nothing while the condition is its own");
}

/// Guards a silent death and the return from it: no word to the server, no packet's answer on the port.
#[tokio::test]
async fn a_stopped_kubelet_is_silent_until_it_resumes() {
    let standin = standin().await;
    let kubelet = started(&standin, "n1").await;
    let metronome = started(&standin, "n2").await;
    let nodes = nodes(&standin);
    let address = SocketAddr::from(([127, 0, 0, 1], kubelet.port()));
    let mut before = probe(address).await.expect("a living port");

    kubelet.stop().await.expect("stops");
    let patch = Patch::Strategic(unknown(None));
    nodes
        .patch_status("n1", &PatchParams::default(), &patch)
        .await
        .expect("patches");
    let (dead, alive) = (renewals(&standin, "n1"), renewals(&standin, "n2"));
    eventually("ten renewals of a living neighbour", async || {
        (renewals(&standin, "n2") >= alive + 10).then_some(())
    })
    .await;
    assert_eq!(renewals(&standin, "n1"), dead);
    assert_eq!(
        ready(&nodes.get("n1").await.expect("reads")).status,
        "Unknown"
    );

    let hang = Duration::from_millis(700);
    for _ in 0..3 {
        let connected = tokio::time::timeout(hang, TcpStream::connect(address)).await;
        assert!(
            connected.is_err(),
            "neither an answer nor a reset, but {connected:?}"
        );
    }
    before
        .write_all(b"GET /healthz HTTP/1.1\r\n\r\n")
        .await
        .expect("goes into the dark");
    let answer = tokio::time::timeout(hang, before.read_u8()).await;
    assert!(
        answer.is_err(),
        "an established connection stays open and mute, not {answer:?}"
    );

    kubelet.resume().await.expect("resumes");
    eventually("Ready=True again", async || {
        (ready(&nodes.get("n1").await.expect("reads")).status == "True").then_some(())
    })
    .await;
    eventually("a renewal", async || {
        (renewals(&standin, "n1") > dead).then_some(())
    })
    .await;
    assert!(
        within("the old connection's end", before.read_u8())
            .await
            .is_err(),
        "gone, as after a reboot"
    );
    within("an answer", probe(address))
        .await
        .expect("a living port");
    kubelet.stop().await.expect("stops a second time");
    kubelet.resume().await.expect("resumes a second time");
    within("an answer", probe(address))
        .await
        .expect("a living port");
    drop(metronome);
}

/// Guards the other death: a process gone from a living host, whose port refuses (scenario 31).
#[tokio::test]
async fn a_killed_kubelet_refuses() {
    let standin = standin().await;
    let kubelet = started(&standin, "n1").await;
    let address = SocketAddr::from(([127, 0, 0, 1], kubelet.port()));
    let mut before = probe(address).await.expect("a living port");
    kubelet.kill().await.expect("dies");
    let refused = TcpStream::connect(address)
        .await
        .expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(
        within("the connection's end", before.read_u8())
            .await
            .is_err()
    );
    kubelet.stop().await.expect("the host dies too");
    assert!(
        tokio::time::timeout(Duration::from_millis(700), TcpStream::connect(address))
            .await
            .is_err()
    );
    kubelet
        .kill()
        .await
        .expect("the host lives again, without its kubelet");
    let refused = TcpStream::connect(address)
        .await
        .expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    kubelet.resume().await.expect("resumes");
    within("an answer", probe(address))
        .await
        .expect("a living port");
}

/// Guards a kubelet's indifference: a Node deleted under it is not registered again before a restart.
#[tokio::test]
async fn a_deleted_node_stays_deleted() {
    let standin = standin().await;
    let _kubelet = started(&standin, "n1").await;
    let nodes = nodes(&standin);
    nodes
        .delete("n1", &DeleteParams::default())
        .await
        .expect("deletes");
    let looks = Matcher::any()
        .verb(Verb::Get)
        .resource("nodes")
        .name("n1")
        .user_agent("kubelet/n1");
    eventually("five looks in vain", async || {
        let count = standin
            .requests()
            .iter()
            .filter(|r| looks.matches(r) && r.code == 404)
            .count();
        (count >= 5).then_some(())
    })
    .await;
    assert!(nodes.get_opt("n1").await.expect("answers").is_none());
}

/// Guards that a kubelet survives an outage of the server and says so afterwards.
#[tokio::test]
async fn a_kubelet_outlives_an_outage() {
    let standin = standin().await;
    let _kubelet = started(&standin, "n1").await;
    standin.away().await.expect("goes away");
    standin.back().await.expect("comes back");
    let before = renewals(&standin, "n1");
    eventually("two renewals", async || {
        (renewals(&standin, "n1") >= before + 2).then_some(())
    })
    .await;
}

/// Connects with TLS, asks for /healthz, and returns the connection if the answer is 401.
async fn probe(address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has the default versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate))
            .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::IpAddress(address.ip().into());
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n")
        .await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"Unauthorized") || answer.len() < 40 {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    assert!(
        answer.starts_with(b"HTTP/1.1 401 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    Ok(stream)
}

/// A kubelet's certificate is self-signed: there is nothing to verify it by.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
