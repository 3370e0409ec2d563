use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Command;

use super::*;

const MINIMAL: &[&str] = &[
    "--cluster-id=prod",
    "--name=node-1",
    "--advertise=10.0.0.1,fd00::1",
    "--cert-file=tls.crt",
    "--key-file=tls.key",
    "--ca-file=ca.crt",
];

fn layers(role: For, flags: &[&str], env: &[(&str, &str)]) -> (Layers, Faults) {
    let args = std::iter::once("swimlet").chain(flags.iter().copied());
    let matches = Command::new("swimlet")
        .args(arguments(role))
        .try_get_matches_from(args)
        .unwrap();
    let env: BTreeMap<_, _> = env.iter().copied().collect();
    let mut faults = Faults::default();
    let lookup = |name: &str| env.get(name).map(|text| (*text).to_owned());
    let layers = Layers::collect(role, &matches, lookup, &mut faults);
    (layers, faults)
}

fn agent(flags: &[&str], env: &[(&str, &str)]) -> Result<AgentConfig, Faults> {
    let (layers, faults) = layers(For::Agent, flags, env);
    AgentConfig::parse(&layers, faults)
}

fn with(more: &[&'static str]) -> Vec<&'static str> {
    MINIMAL
        .iter()
        .copied()
        .chain(more.iter().copied())
        .collect()
}

fn file(name: &str, text: &str) -> (PathBuf, String) {
    let path =
        std::env::temp_dir().join(format!("swimlet-config-{}-{name}.yaml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let flag = format!("--config={}", path.display());
    (path, flag)
}

#[test]
fn a_minimal_agent_gets_the_documented_defaults() {
    let config = agent(MINIMAL, &[]).unwrap();
    assert_eq!(
        config.member.identity.to_string(),
        "spiffe://prod/node/node-1"
    );
    let bind: Vec<_> = config.member.bind.iter().map(ToString::to_string).collect();
    assert_eq!(bind, ["10.0.0.1:10270", "[fd00::1]:10270"]);
    assert_eq!(config.member.advertise, config.member.bind);
    assert_eq!(config.member.admin_bind.port(), 10_272);
    assert_eq!(config.kubelet_port.get(), 10_250);
    assert_eq!(config.member.state_dir, None);
}

#[test]
fn the_admin_endpoint_is_where_the_kubelets_probes_go() {
    let flags = [
        "--cluster-id=prod",
        "--name=node-1",
        "--advertise=fd00::1",
        "--cert-file=a",
        "--key-file=b",
        "--ca-file=c",
    ];
    assert_eq!(
        agent(&flags, &[]).unwrap().member.admin_bind.to_string(),
        "[::]:10272"
    );
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let (path, flag) = file(
        "order",
        "zone: from-file\nkubelet-port: 1\nlog-level: warn\nname: node-file\n",
    );
    let flags: Vec<&str> = with(&["--zone=from-flag"])
        .into_iter()
        .chain([flag.as_str()])
        .collect();
    let env = [("SWIMLET_ZONE", "from-env"), ("SWIMLET_KUBELET_PORT", "2")];
    let config = agent(&flags, &env).unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(config.member.zone.as_str(), "from-flag");
    assert_eq!(config.kubelet_port.get(), 2);
    assert_eq!(config.member.identity.name.as_str(), "node-1");
    assert_eq!(config.member.log_level, "warn".parse().unwrap());
}

#[test]
fn all_faults_are_named_at_once_with_their_source() {
    let (path, flag) = file("faults", "zones: typo\nmode: enforce\n");
    let flags = [
        "--cluster-id=prod",
        "--name=Node_1",
        "--advertise=10.0.0.1,0.0.0.0",
        &flag,
    ];
    let faults = agent(&flags, &[("SWIMLET_KUBELET_PORT", "0")]).unwrap_err();
    std::fs::remove_file(path).unwrap();
    let text = faults.to_string();
    for part in [
        "unknown key \"zones\"",
        // A setting of aggregators is none of an agent.
        "unknown key \"mode\"",
        "name = \"Node_1\" (from --name)",
        "0.0.0.0, at which nobody can reach",
        "kubelet-port = \"0\" (from SWIMLET_KUBELET_PORT)",
        "cert-file is required",
        "has 8 faults",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_file_that_is_no_mapping_or_not_there_is_a_fault() {
    let (path, flag) = file("list", "- zone\n");
    let flags: Vec<&str> = with(&[]).into_iter().chain([flag.as_str()]).collect();
    assert!(
        agent(&flags, &[])
            .unwrap_err()
            .to_string()
            .contains("no YAML mapping")
    );
    std::fs::remove_file(path).unwrap();
    assert!(
        agent(&flags, &[])
            .unwrap_err()
            .to_string()
            .contains("cannot be read")
    );
}

#[test]
fn lists_may_be_lists_in_the_file() {
    let (path, flag) = file("lists", "seeds: ['a.example:10271', '[fd00::2]:10271']\n");
    let flags: Vec<&str> = with(&[]).into_iter().chain([flag.as_str()]).collect();
    let config = agent(&flags, &[]).unwrap();
    std::fs::remove_file(path).unwrap();
    let seeds: Vec<_> = config
        .member
        .seeds
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(seeds, ["a.example:10271", "[fd00::2]:10271"]);
}

#[test]
fn seeds_need_a_host_and_a_port() {
    for bad in [
        "a",
        "a:",
        ":1",
        "a:0",
        "fd00::1:10271",
        "[a]:1",
        "a/b:1",
        "a:65536",
    ] {
        assert!(bad.parse::<Seed>().is_err(), "{bad}");
    }
}

#[test]
fn an_aggregator_observes_unless_told_to_enforce() {
    let (layers, faults) = layers(For::Aggregator, MINIMAL, &[]);
    let config = AggregatorConfig::parse(&layers, faults).unwrap();
    assert_eq!(config.mode, swimlet_cluster::Mode::Observe);
    assert_eq!(config.member.bind[0].port(), 10_271);
    let (layers, faults) = self::layers(
        For::Aggregator,
        &with(&["--mode=yolo", "--profile=slow"]),
        &[],
    );
    let text = AggregatorConfig::parse(&layers, faults)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("observe or enforce") && text.contains("cautious"),
        "{text}"
    );
}

#[test]
fn the_reference_page_has_every_setting() {
    let page = include_str!("../../../../docs/reference/configuration.md");
    for setting in table::SETTINGS {
        let row = format!("| `{}` | `{}` |", setting.key, setting.value);
        let row = page.lines().find(|line| line.starts_with(&row));
        let row = row.unwrap_or_else(|| panic!("no row for {}", setting.key));
        let help = setting.help.split(" [").next().unwrap();
        assert!(row.contains(help), "{row}\nlacks: {help}");
    }
}
