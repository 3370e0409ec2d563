use super::{Expect, Of, Scenario, parse};
use crate::fault::{Fault, Target};
use crate::record::NodeId;
use crate::units::Span;

const GOOD: &str = r#"
name = "good"
shows = "A file in all its forms."
lasts = "60s"

[topology]
nodes = 9

[[fault]]
name = "dead"
at = "10s"
for = "20s"
what.crash = { target = { nodes = [3] }, returns = "replaced" }

[[fault]]
at = "12s"
what = "api_down"

[[expect]]
written = { of = "dead", within = "8s" }

[[expect]]
no_false_downs = {}

[[expect]]
may_be_written = { of = [4, 5] }
"#;

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// Guards the form that docs/simulator.md describes.
#[test]
fn a_file_says_what_it_looks_like() {
    let scenario = parse(GOOD).unwrap();
    assert_eq!(scenario.faults[0].lasts, Some(Span::from_secs(20)));
    assert_eq!(
        scenario.faults[0].what.target(),
        Some(&Target::Nodes(vec![3]))
    );
    assert_eq!(scenario.faults[1].what, Fault::ApiDown);
    assert!(
        matches!(&scenario.expects[0], Expect::Written { of: Of::Fault(name), times: 1, .. } if name == "dead")
    );
    let of = |expect: &Expect| expect.of().cloned();
    assert_eq!(
        of(&scenario.expects[2]),
        Some(Of::Nodes(vec![NodeId(4), NodeId(5)]))
    );
    let written = scenario.to_toml().unwrap();
    assert_eq!(parse(&written).unwrap(), scenario, "{written}");
}

/// Guards that a slip of the pen is named with its line, and never ignored.
#[test]
fn what_is_unknown_is_an_error_that_names_line_and_key() {
    for (from, to, line, key) in [
        ("lasts =", "last =", "line 4", "last"),
        ("nodes = 9", "node = 9", "line 7", "node"),
        ("for = \"20s\"", "during = \"20s\"", "line 12", "during"),
        ("returns =", "return =", "line 13", "return"),
        ("what.crash", "what.crush", "line 13", "crush"),
        ("within = \"8s\"", "within = \"8\"", "line 20", "\"8\""),
        (
            "no_false_downs",
            "no_false_alarms",
            "line 23",
            "no_false_alarms",
        ),
    ] {
        let message = error(&GOOD.replace(from, to));
        assert!(message.contains(line), "{message}");
        assert!(message.contains(key), "{message}");
    }
}

/// Guards that what the form allows and the cluster does not is refused, and where.
#[test]
fn what_cannot_be_is_refused() {
    for (from, to, says) in [
        ("nodes = 9", "nodes = 0", "[topology]: nodes = 0"),
        ("nodes = [3]", "nodes = [9]", "[[fault]] 1 (dead): node 9"),
        (
            "at = \"10s\"",
            "at = \"60s\"",
            "[[fault]] 1 (dead): at = 1m",
        ),
        (
            "at = \"12s\"",
            "at = \"12s\"\ntimes = 2",
            "[[fault]] 2: times = 2 without every",
        ),
        (
            "at = \"12s\"",
            "at = \"12s\"\nname = \"dead\"",
            "[[fault]] 2 (dead): the name",
        ),
        (
            "what = \"api_down\"",
            "what.join = { count = 1, address_of = 9 }",
            "[[fault]] 2: address_of = 9",
        ),
        (
            "of = \"dead\"",
            "of = \"daed\"",
            "[[expect]] 1: no fault is named \"daed\"",
        ),
        ("lasts = \"60s\"", "lasts = \"0s\"", "lasts: "),
    ] {
        let message = error(&GOOD.replace(from, to));
        assert!(message.starts_with(says), "{message}");
    }
}

/// Guards that a scenario is judged by what its file says: each of these must fail.
#[test]
fn what_does_not_hold_fails() {
    let quiet = |expects: &str| -> Scenario {
        let head = "name = \"quiet\"\nshows = \"Nothing happens.\"\nlasts = \"20s\"\n[topology]\nnodes = 5\n[[fault]]\nname = \"hold\"\nat = \"1s\"\nwhat.hold = { target = { nodes = [3] } }\n[[expect]]\n";
        parse(&format!("{head}{expects}")).unwrap()
    };
    for expects in [
        "written = { of = \"hold\", within = \"5s\" }",
        "noticed = { notice = \"agent_missing\", of = \"hold\", within = \"5s\" }",
        "decided = { of = \"hold\", verdict = \"unreachable\", within = \"5s\" }",
        "ends_as = { of = \"hold\", verdict = \"unreachable\" }",
        "members_at_most = { members = 1 }",
        "suspended = { of = \"hold\" }",
        "traffic_at_most = { datagrams_per_s = 0, bytes_per_s = 0 }",
    ] {
        let outcome = super::run(&quiet(expects), 1).unwrap();
        assert_eq!(
            outcome.failures.len(),
            1 + usize::from(expects.contains("traffic")),
            "{expects}: {outcome:?}"
        );
    }
}
