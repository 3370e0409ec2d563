# What developers and CI call; `just` lists it.
default:
    @just --list

# Everything that must hold before a change lands.
ci:
    .ci/run

# All tests, the real control plane included (builds it once, about 12 minutes).
test:
    cargo test --workspace

# The fast tests: no control plane, no network namespaces.
fast:
    cargo test --workspace --exclude swimlet-rig --lib

# Formatting and lints.
lint:
    cargo fmt --all -- --check
    cargo clippy --workspace --all-targets -- -D warnings

# Ten deaths on twelve real kubelets, swimlet beside the in-tree detection; JSON under target/reports/.
e2e-report:
    cargo bench -p swimlet --bench e2e_report

# One node dies in front of you.
demo:
    cargo run --release -- demo
