use super::{generate, shrink};
use crate::fault::Fault;
use crate::invariants::Name;
use crate::scenario::{Scenario, parse};

/// Guards that a seed means one schedule, and that each is a file one can run.
#[test]
fn what_is_generated_can_be_written_and_read() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..300 {
        let scenario = generate(seed);
        assert_eq!(scenario, generate(seed));
        let text = scenario.to_toml().unwrap();
        let read = parse(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        assert_eq!(read, scenario, "{text}");
        let kind = |event: &crate::scenario::Event| {
            let text = format!("{:?}", event.what);
            text.split([' ', '{']).next().map(str::to_owned)
        };
        kinds.extend(scenario.faults.iter().filter_map(kind));
    }
    // Every kind of fault is drawn: a new one must not be forgotten here.
    assert_eq!(kinds.len(), 23, "{kinds:?}");
}

/// Guards that only what a violation needs is left.
#[test]
fn what_does_not_matter_is_shrunk_away() {
    let needs = |scenario: &Scenario| {
        let crash = |event: &crate::scenario::Event| matches!(event.what, Fault::Crash { .. });
        let crashes = scenario.faults.iter().any(crash);
        (crashes && scenario.topology.nodes >= 3).then_some(Name::Complete)
    };
    let seed = (0..)
        .find(|seed| needs(&generate(*seed)).is_some())
        .unwrap();
    let shrunk = shrink(&generate(seed), Name::Complete, 1_000, needs);
    assert_eq!(shrunk.scenario.faults.len(), 1, "{shrunk:?}");
    assert!(shrunk.scenario.topology.nodes <= 6, "{shrunk:?}");
    assert!(parse(&shrunk.scenario.to_toml().unwrap()).is_ok());
}
