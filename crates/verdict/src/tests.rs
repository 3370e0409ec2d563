//! Scenarios in virtual time. The numbers are those of the project's list of
//! failure scenarios.

mod crash;
mod doubt;
mod kubelet;
mod village;
