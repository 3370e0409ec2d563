//! The stand-in as its users see it: through the kube client, over real HTTP.

#[cfg(test)]
mod api;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod kubelet;
#[cfg(test)]
mod support;
#[cfg(test)]
mod watching;
