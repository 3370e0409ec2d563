//! The binary as a user calls it: faults are told before anything is started.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use swimlet_transport::ca::Authority;

fn swimlet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swimlet"));
    command.env_clear();
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Starts a member, waits until it has said `line`, stops it by SIGTERM, and returns what it
/// said after that. It must end with success.
fn stop_after(command: &mut Command, line: &str) -> Vec<String> {
    let mut member = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(member.stderr.take().unwrap()).lines();
    let said = log.any(|said| said.unwrap().contains(line));
    assert!(said, "it ended without having said {line:?}");
    let pid = member.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(killed.success());
    let rest: Vec<_> = log.map_while(Result::ok).collect();
    let status = member.wait().unwrap();
    assert!(status.success(), "{status}: {rest:#?}");
    rest
}

/// A folder with a node's certificate, key and CA, and the flags that name them.
struct Pki {
    folder: PathBuf,
}

impl Pki {
    fn new(test: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("swimlet-cli-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let cluster = "test".parse().unwrap();
        let authority = Authority::new(&cluster).unwrap();
        for role in ["node", "aggregator"] {
            let identity = format!("spiffe://test/{role}/node-1").parse().unwrap();
            let issued = authority
                .issue(&identity, Duration::from_secs(3600))
                .unwrap();
            std::fs::write(folder.join(format!("{role}.crt")), issued.certificate_pem).unwrap();
            std::fs::write(folder.join(format!("{role}.key")), issued.key_pem).unwrap();
        }
        std::fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
        Self { folder }
    }

    fn agent(&self, name: &str, port: u16) -> Command {
        self.member("agent", "node", name, port)
    }

    fn aggregator(&self) -> Command {
        self.member("aggregator", "aggregator", "node-1", 0)
    }

    fn member(&self, command: &str, role: &str, name: &str, port: u16) -> Command {
        let file = |name: String| self.folder.join(name).display().to_string();
        let mut swimlet = swimlet();
        swimlet
            .args([command, "--cluster-id=test", "--advertise=127.0.0.1"])
            .arg(format!("--name={name}"))
            .arg(format!("--mesh-bind=127.0.0.1:{port}"))
            .arg("--admin-bind=127.0.0.1:0")
            .arg(format!("--cert-file={}", file(format!("{role}.crt"))))
            .arg(format!("--key-file={}", file(format!("{role}.key"))))
            .arg(format!("--ca-file={}", file("ca.crt".into())));
        swimlet
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_config_with_three_faults_names_all_three_and_exits_64() {
    let output = swimlet()
        .args([
            "aggregator",
            "--cluster-id=test",
            "--name=agg-1",
            "--advertise=10.0.0.1",
        ])
        .args(["--cert-file=a", "--key-file=b", "--ca-file=c"])
        .args(["--mode=write", "--profile=slow", "--seeds=nowhere"])
        .output()
        .unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(64), "{text}");
    assert!(text.contains("3 faults"), "{text}");
    for fault in [
        "mode = \"write\"",
        "profile = \"slow\"",
        "seeds = \"nowhere\"",
    ] {
        assert!(text.contains(fault), "{fault} is missing in:\n{text}");
    }
}

#[test]
fn an_unknown_flag_or_command_exits_64() {
    for args in [&["agent", "--no-such-flag"][..], &["no-such-command"], &[]] {
        let output = swimlet().args(args).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(64),
            "{args:?}: {}",
            text(&output)
        );
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let help = swimlet().args(["agent", "--help"]).output().unwrap();
    assert!(help.status.success());
    let help = String::from_utf8_lossy(&help.stdout);
    assert!(
        help.contains("--kubelet-port") && help.contains("SWIMLET_KUBELET_PORT"),
        "{help}"
    );
    assert!(!help.contains("--mode"), "an agent has no mode:\n{help}");
    let version = swimlet().arg("version").output().unwrap();
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    assert_eq!(
        version.trim(),
        format!("swimlet {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_mesh_port_in_use_is_named() {
    let pki = Pki::new("port");
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = pki.agent("node-1", port).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains("in use"), "{text}");
}

/// Scenario 27, at home: the certificate on disk must be the configured member's.
#[test]
fn a_certificate_of_another_name_is_refused_at_start() {
    let pki = Pki::new("name");
    let output = pki.agent("node-2", 0).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("node-1") && text.contains("node-2"), "{text}");
}

#[test]
fn missing_credentials_are_named_with_their_path() {
    let output = swimlet()
        .args([
            "agent",
            "--cluster-id=test",
            "--name=node-1",
            "--advertise=127.0.0.1",
        ])
        .args(["--mesh-bind=127.0.0.1:0", "--admin-bind=127.0.0.1:0"])
        .args([
            "--cert-file=/nonexistent/tls.crt",
            "--key-file=k",
            "--ca-file=c",
        ])
        .output()
        .unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("/nonexistent/tls.crt"), "{text}");
}

/// A member that finds nobody to join, and whose seeds' name has no address, stops as
/// politely as any other: SIGTERM during start is an ordinary stop.
#[test]
fn sigterm_during_start_ends_with_success() {
    let pki = Pki::new("sigterm");
    let mut agent = pki.agent("node-1", 0);
    agent.arg("--seeds=127.0.0.1:9,no-such-name.invalid:10271");
    let rest = stop_after(&mut agent, "the agent has started");
    let says = |word| rest.iter().any(|line| line.contains(word));
    assert!(says("SIGTERM") && !says("ERROR"), "{rest:#?}");
}

/// An API server that is away is waited for, and said; it stops nothing else.
#[test]
fn an_aggregator_starts_without_an_api_server() {
    let pki = Pki::new("no-api");
    let kubeconfig = pki.folder.join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n\
        contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n";
    std::fs::write(&kubeconfig, text).unwrap();
    let mut aggregator = pki.aggregator();
    aggregator.arg(format!("--kubeconfig={}", kubeconfig.display()));
    stop_after(&mut aggregator, "the API server does not answer");
}

/// The demo is the first thing that anyone sees; its JSON is what programs read.
#[test]
fn the_demo_writes_the_killed_node_and_no_other() {
    let output = swimlet()
        .args(["demo", "--json", "--nodes", "5", "--kill", "1"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{out}\n{}", text(&output));
    let lines: Vec<serde_json::Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let at = |event: &str| {
        let found = lines.iter().position(|line| line["event"] == event);
        found.unwrap_or_else(|| panic!("no {event} in:\n{out}"))
    };
    let order = [
        "formed",
        "killed",
        "missed_probe",
        "accusation",
        "verification",
        "verdict",
        "unknown",
        "pods_not_ready",
        "ready_again",
        "summary",
    ];
    for pair in order.windows(2) {
        assert!(
            at(pair[0]) < at(pair[1]),
            "{} after {}:\n{out}",
            pair[0],
            pair[1]
        );
    }
    let summary = lines.last().unwrap();
    assert_eq!(summary["event"], "summary");
    assert_eq!(summary["nodes"], 5);
    assert_eq!(summary["false_writes"], 0);
    assert_eq!(summary["killed"].as_array().map(Vec::len), Some(1));
    assert_eq!(summary["unknown_ms"].as_array().map(Vec::len), Some(1));
}
