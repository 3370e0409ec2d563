//! The control plane itself: etcd, the API server, the controller manager.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Node as ApiNode, Pod, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};

use crate::audit::{self, AuditEvent, AuditStage};
use crate::binary::Component;
use crate::host::Host;
use crate::netns::Network;
use crate::node::{Node, NodeSpec};
use crate::options::{NetworkMode, Options};
use crate::pki::{self, Authority, Credential};
use crate::process::Process;
use crate::user::{self, Proof, User};
use crate::wait::eventually;
use crate::workdir::Workdir;

/// Ready in 4 s on an idle machine of 2 cores; this is for a busy one.
const START_DEADLINE: Duration = Duration::from_mins(2);
/// A hollow kubelet is Ready after 2–12 s.
const NODE_DEADLINE: Duration = Duration::from_mins(2);
/// No kubectl command of a test takes longer.
const KUBECTL_DEADLINE: Duration = Duration::from_mins(1);
/// Longer than any test.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// A running control plane. Dropping it ends every process and removes every
/// namespace and file; if the test is panicking, its logs are kept and their
/// path is printed (with `SWIMLET_RIG_KEEP` set, always).
pub struct ControlPlane {
    options: Options,
    workdir: Arc<Workdir>,
    host: Host,
    network: Option<Network>,
    ports: Ports,
    authority: Authority,
    admin_token: String,
    hosts: Mutex<Vec<Host>>,
    services: Mutex<Services>,
}

/// The processes of the control plane, as last started.
#[derive(Default)]
struct Services {
    etcd: Option<Process>,
    api_server: Option<Process>,
    controller_manager: Option<Process>,
}

/// Where the components listen.
#[derive(Clone, Copy)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    api_server: u16,
}

impl ControlPlane {
    /// Starts a control plane and waits until it is ready for requests.
    ///
    /// # Errors
    /// When a component is missing, ends, or is not ready within two minutes;
    /// the logs are kept then.
    pub async fn start(options: Options) -> Result<Self> {
        // Built before anything is made: it may take minutes.
        let component = tokio::task::spawn_blocking(|| Component::ApiServer.command());
        component.await??;
        let workdir = Arc::new(Workdir::create()?);
        let control_plane = Self::lay_out(options, Arc::clone(&workdir))?;
        if let Err(error) = control_plane.boot().await {
            workdir.keep();
            return Err(error);
        }
        Ok(control_plane)
    }

    /// The host that the control plane runs on, for further processes there.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Where the API server listens (HTTPS).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.host.address()), self.ports.api_server)
    }

    /// The certificate authority of the API server and of client certificates (PEM).
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.workdir.path().join("ca.crt")
    }

    /// The rig's folder, deleted with it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.workdir.path()
    }

    /// The API server's process, as last started.
    ///
    /// # Errors
    /// Before it was started.
    pub fn api_server(&self) -> Result<Process> {
        let service = self.services().api_server.clone();
        service.ok_or_else(|| anyhow!("the API server was not started"))
    }

    /// The controller manager's process, as last started.
    ///
    /// # Errors
    /// When [`Options::controllers`] is empty.
    pub fn controller_manager(&self) -> Result<Process> {
        let service = self.services().controller_manager.clone();
        service.ok_or_else(|| anyhow!("this rig has no controllers: see Options::controllers"))
    }

    /// Kills the API server, if it runs, starts it anew and waits until it is ready.
    ///
    /// # Errors
    /// When it is not ready within two minutes.
    pub async fn restart_api_server(&self) -> Result<Process> {
        self.api_server()?.kill()?;
        self.start_api_server()?;
        self.wait_ready().await?;
        self.api_server()
    }

    /// Kills the controller manager, if it runs, and starts it anew: a failover.
    ///
    /// # Errors
    /// When [`Options::controllers`] is empty.
    pub async fn restart_controller_manager(&self) -> Result<Process> {
        self.controller_manager()?.kill()?;
        self.start_controller_manager()?;
        self.controller_manager()
    }

    /// A kubeconfig file for `user`, with a credential that lasts a day.
    ///
    /// # Errors
    /// When the credential cannot be issued.
    pub async fn kubeconfig(&self, user: &User) -> Result<PathBuf> {
        let server = format!("https://{}", self.address());
        let stem = user.file_stem();
        let write = |proof: &Proof<'_>| {
            let config = user::kubeconfig(&server, &self.ca_file(), proof)?;
            self.workdir.file(&format!("{stem}.kubeconfig"), &config)
        };
        match user {
            User::Admin => write(&Proof::Token(&self.admin_token)),
            User::Node(_) => self.certificate_kubeconfig(user, "system:nodes"),
            User::ServiceAccount { namespace, name } => {
                let token = self.token(namespace, name, &[], None).await?;
                write(&Proof::Token(&token))
            }
        }
    }

    /// A client that speaks as `user`, without kube's retry layer: a test sees
    /// each answer as it was given.
    ///
    /// # Errors
    /// As for [`ControlPlane::kubeconfig`].
    pub async fn client(&self, user: &User) -> Result<Client> {
        let file = self.kubeconfig(user).await?;
        let kubeconfig = Kubeconfig::read_from(file)?;
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// A token of a ServiceAccount, which is created if it is missing.
    ///
    /// Without `audiences` it is for the API server; with `pod` it is bound to
    /// that pod, as a projected one is, and a TokenReview names the pod's node.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn token(
        &self,
        namespace: &str,
        service_account: &str,
        audiences: &[&str],
        pod: Option<&Pod>,
    ) -> Result<String> {
        let client = self.client_for_admin().await?;
        ensure_service_account(&client, namespace, service_account).await?;
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: audiences.iter().copied().map(String::from).collect(),
                expiration_seconds: Some(TOKEN_SECONDS),
                bound_object_ref: pod.map(|pod| BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(pod.name_any()),
                    uid: pod.uid(),
                }),
            },
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client, namespace);
        let answer = accounts
            .create_token_request(service_account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("no token for {namespace}/{service_account}"))?;
        let status = answer.status.context("a TokenRequest without a status")?;
        Ok(status.token)
    }

    /// Runs kubectl as the admin; returns its standard output.
    ///
    /// # Errors
    /// When it fails, with its standard error, or takes longer than a minute.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let kubeconfig = self.kubeconfig(&User::Admin).await?;
        let mut command = Component::Kubectl.command()?;
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .stdin(Stdio::null());
        let output = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(KUBECTL_DEADLINE, output)
            .await
            .with_context(|| format!("kubectl {arguments:?} took longer than a minute"))??;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("kubectl {arguments:?} failed: {}", error.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The requests that the API server has answered so far, oldest first.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn audit(&self) -> Result<Vec<AuditEvent>> {
        let mut events = self.audit_stages()?;
        events.retain(|event| event.stage != AuditStage::ResponseStarted);
        Ok(events)
    }

    /// All audit events so far, among them the start of each watch.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn audit_stages(&self) -> Result<Vec<AuditEvent>> {
        audit::read(&self.audit_file())
    }

    /// Adds a host without a kubelet: the place of an aggregator.
    ///
    /// # Errors
    /// When the rig does not run in namespaces.
    pub fn add_host(&self, name: &str) -> Result<Host> {
        let network = self.network.as_ref().ok_or_else(|| {
            anyhow!("hosts live in network namespaces: start with Options::namespaces()")
        })?;
        if self.hosts().iter().any(|host| host.name() == name) {
            bail!("this rig has a host {name} already");
        }
        let leg = network.plug(&self.workdir, name)?;
        let host = Host::in_namespace(name, leg, &self.workdir)?;
        self.hosts().push(host.clone());
        Ok(host)
    }

    /// Adds a node and waits until it is Ready.
    ///
    /// # Errors
    /// When the rig does not run in namespaces, or the node is not Ready
    /// within two minutes.
    pub async fn add_node(&self, spec: &NodeSpec) -> Result<Node> {
        let node = self.start_node(spec)?;
        self.wait_node_ready(&node).await?;
        Ok(node)
    }

    /// Adds several nodes at once and waits until all are Ready.
    ///
    /// # Errors
    /// As for [`ControlPlane::add_node`].
    pub async fn add_nodes(&self, specs: &[NodeSpec]) -> Result<Vec<Node>> {
        let nodes: Vec<_> = specs
            .iter()
            .map(|spec| self.start_node(spec))
            .collect::<Result<_>>()?;
        for node in &nodes {
            self.wait_node_ready(node).await?;
        }
        Ok(nodes)
    }
}

impl ControlPlane {
    fn lay_out(options: Options, workdir: Arc<Workdir>) -> Result<Self> {
        let (network, host, ports) = match options.network {
            NetworkMode::Machine => {
                let (address, ports) = machine_place();
                let host = Host::on_machine("control-plane", address, &workdir)?;
                (None, host, ports)
            }
            NetworkMode::Namespaces => {
                let (network, leg) = Network::create(&workdir)?;
                let host = Host::in_namespace("control-plane", leg, &workdir)?;
                (Some(network), host, Ports::USUAL)
            }
        };
        Ok(Self {
            options,
            hosts: Mutex::new(vec![host.clone()]),
            host,
            network,
            ports,
            authority: Authority::new()?,
            admin_token: pki::random_token()?,
            services: Mutex::default(),
            workdir,
        })
    }

    async fn boot(&self) -> Result<()> {
        self.write_files()?;
        self.start_etcd()?;
        self.start_api_server()?;
        self.wait_ready().await?;
        if !self.options.controllers.is_empty() {
            self.start_controller_manager()?;
        }
        Ok(())
    }

    fn write_files(&self) -> Result<()> {
        let files = &self.workdir;
        files.file("ca.crt", &self.authority.certificate())?;
        let address = IpAddr::V4(self.host.address());
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let server = self
            .authority
            .server("kube-apiserver", &[address, loopback])?;
        self.write_credential("kube-apiserver", &server)?;
        let (private, public) = pki::service_account_keys()?;
        files.file("service-accounts.key", &private)?;
        files.file("service-accounts.pub", &public)?;
        let token = &self.admin_token;
        files.file(
            "tokens.csv",
            &format!("{token},admin,admin,system:masters\n"),
        )?;
        files.file("audit-policy.json", &audit::policy().to_string())?;
        Ok(())
    }

    fn write_credential(&self, stem: &str, credential: &Credential) -> Result<(PathBuf, PathBuf)> {
        let certificate = format!("{stem}.crt");
        Ok((
            self.workdir.file(&certificate, &credential.certificate)?,
            self.workdir.file(&format!("{stem}.key"), &credential.key)?,
        ))
    }

    fn certificate_kubeconfig(&self, user: &User, group: &str) -> Result<PathBuf> {
        self.named_kubeconfig(&user.file_stem(), &user.username(), group)
    }

    fn named_kubeconfig(&self, stem: &str, username: &str, group: &str) -> Result<PathBuf> {
        let credential = self.authority.client(username, group)?;
        let (certificate, key) = self.write_credential(stem, &credential)?;
        let config = user::kubeconfig(
            &format!("https://{}", self.address()),
            &self.ca_file(),
            &Proof::Certificate {
                certificate: &certificate,
                key: &key,
            },
        )?;
        self.workdir.file(&format!("{stem}.kubeconfig"), &config)
    }

    fn start_etcd(&self) -> Result<()> {
        let address = self.host.address();
        let client = format!("http://{address}:{}", self.ports.etcd);
        let peer = format!("http://{address}:{}", self.ports.etcd_peer);
        let mut command = Component::Etcd.command()?;
        command
            .arg("--name=rig")
            .arg(flag("data-dir", &self.workdir.path().join("etcd")))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=rig={peer}"))
            // The data need not outlive the test.
            .arg("--unsafe-no-fsync");
        self.services().etcd = Some(self.host.spawn("etcd", &command)?);
        Ok(())
    }

    fn start_api_server(&self) -> Result<()> {
        let file = |name: &str| self.workdir.path().join(name);
        let address = self.host.address();
        let mut command = Component::ApiServer.command()?;
        command
            .arg(format!(
                "--etcd-servers=http://{address}:{}",
                self.ports.etcd
            ))
            .arg(format!("--bind-address={address}"))
            .arg(format!("--secure-port={}", self.ports.api_server))
            .arg(flag("cert-dir", &file("api-server")))
            .arg(flag("tls-cert-file", &file("kube-apiserver.crt")))
            .arg(flag("tls-private-key-file", &file("kube-apiserver.key")))
            .arg(flag("client-ca-file", &self.ca_file()))
            .arg(flag("token-auth-file", &file("tokens.csv")))
            .arg("--authorization-mode=Node,RBAC")
            .arg("--enable-admission-plugins=NodeRestriction")
            // It would wait for token controllers that do not run here.
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(flag(
                "service-account-key-file",
                &file("service-accounts.pub"),
            ))
            .arg(flag(
                "service-account-signing-key-file",
                &file("service-accounts.key"),
            ))
            // Outside the subnets that hosts are given.
            .arg("--service-cluster-ip-range=10.255.0.0/24")
            .arg("--endpoint-reconciler-type=none")
            .arg("--allow-privileged")
            .arg(flag("audit-policy-file", &file("audit-policy.json")))
            .arg(flag("audit-log-path", &self.audit_file()))
            // One file: rotation would hide its beginning.
            .arg("--audit-log-maxsize=10000")
            // An answered request is in the log.
            .arg("--audit-log-mode=blocking")
            .args(&self.options.api_server_flags);
        self.services().api_server = Some(self.host.spawn("kube-apiserver", &command)?);
        Ok(())
    }

    fn start_controller_manager(&self) -> Result<()> {
        let kubeconfig = self.named_kubeconfig(
            "kube-controller-manager",
            "system:kube-controller-manager",
            "system:masters",
        )?;
        let seconds = |flag: &str, duration: Duration| format!("--{flag}={}s", duration.as_secs());
        let options = &self.options;
        let mut command = Component::ControllerManager.command()?;
        command
            .arg(flag("kubeconfig", &kubeconfig))
            .arg("--leader-elect=false")
            .arg("--use-service-account-credentials=false")
            // Its own port serves nothing that a test reads.
            .arg("--secure-port=0")
            .arg(format!("--controllers={}", options.controllers.join(",")))
            .arg(seconds(
                "node-monitor-grace-period",
                options.node_monitor_grace_period,
            ))
            .arg(seconds(
                "node-startup-grace-period",
                options.node_startup_grace_period,
            ))
            .args(&options.controller_manager_flags);
        let process = self.host.spawn("kube-controller-manager", &command)?;
        self.services().controller_manager = Some(process);
        Ok(())
    }

    /// Waits for `/readyz` and for the namespaces that the API server makes
    /// after it.
    async fn wait_ready(&self) -> Result<()> {
        let client = self.client_for_admin().await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        eventually(START_DEADLINE, "the API server to be ready", async || {
            let services = self.service_list();
            if let Some(Err(ended)) = services
                .iter()
                .map(Process::ensure_running)
                .find(Result::is_err)
            {
                return Ok(Some(Err(ended)));
            }
            let request = http_get("/readyz")?;
            client.request_text(request).await?;
            for name in ["default", "kube-system", "kube-node-lease"] {
                namespaces.get(name).await?;
            }
            Ok(Some(Ok(())))
        })
        .await?
    }

    fn start_node(&self, spec: &NodeSpec) -> Result<Node> {
        let host = self.add_host(&spec.name)?;
        let user = User::node(&spec.name);
        let kubeconfig = self.certificate_kubeconfig(&user, "system:nodes")?;
        let mut command = Component::Kubelet.command()?;
        command
            .arg(flag("kubeconfig", &kubeconfig))
            .arg(flag("client-ca-file", &self.ca_file()))
            .arg(flag("root-dir", &host.folder().join("kubelet")))
            .arg(format!("--node-ip={}", host.address()))
            .arg(format!("--port={}", Node::KUBELET_PORT))
            .arg(format!("--healthz-port={}", Node::HEALTHZ_PORT))
            .args(spec.flags());
        Node::start(host, command)
    }

    async fn wait_node_ready(&self, node: &Node) -> Result<()> {
        let nodes: Api<ApiNode> = Api::all(self.client_for_admin().await?);
        let what = format!("node {} to be Ready", node.name());
        eventually(NODE_DEADLINE, &what, async || {
            if let Err(ended) = node.kubelet().ensure_running() {
                return Ok(Some(Err(ended)));
            }
            let status = nodes.get(node.name()).await?.status;
            let conditions = status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let ready = conditions
                .iter()
                .find(|condition| condition.type_ == "Ready");
            match ready {
                Some(ready) if ready.status == "True" => Ok(Some(Ok(()))),
                Some(ready) => bail!("{:?}: {:?}", ready.reason, ready.message),
                None => bail!("it has no Ready condition"),
            }
        })
        .await?
    }

    async fn client_for_admin(&self) -> Result<Client> {
        // Boxed: a ServiceAccount's kubeconfig needs the admin's client.
        Box::pin(self.client(&User::Admin)).await
    }

    fn audit_file(&self) -> PathBuf {
        self.workdir.path().join("audit.log")
    }

    fn service_list(&self) -> Vec<Process> {
        let services = self.services();
        let known = [&services.etcd, &services.api_server];
        known.into_iter().flatten().cloned().collect()
    }

    fn services(&self) -> MutexGuard<'_, Services> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hosts(&self) -> MutexGuard<'_, Vec<Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for host in self.hosts().iter().rev() {
            let _ = host.kill_all();
        }
        // The leg of the test process goes before the namespaces do.
        self.network = None;
        self.workdir.clean();
    }
}

impl Ports {
    /// In a namespace of its own, nothing else listens.
    const USUAL: Self = Self {
        etcd: 2379,
        etcd_peer: 2380,
        api_server: 6443,
    };
}

/// A loopback address that only this process uses, and ports that only this rig
/// of it does: nothing has to be probed for being free, and nothing can take it
/// in between. The ports are below those that the kernel gives to clients.
fn machine_place() -> (Ipv4Addr, Ports) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [_, x, y, z] = std::process::id().to_be_bytes();
    // A pid has at most 22 bits.
    let address = Ipv4Addr::new(127, 128 | x, y, z);
    let first = 20_000 + 3 * (NEXT.fetch_add(1, Ordering::Relaxed) % 1_000);
    let ports = Ports {
        etcd: first,
        etcd_peer: first + 1,
        api_server: first + 2,
    };
    (address, ports)
}

async fn ensure_service_account(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let metadata = |name: &str| ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    if namespaces.get_opt(namespace).await?.is_none() {
        let wanted = Namespace {
            metadata: metadata(namespace),
            ..Namespace::default()
        };
        created_by_anyone(namespaces.create(&PostParams::default(), &wanted).await)?;
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    if accounts.get_opt(name).await?.is_none() {
        let wanted = ServiceAccount {
            metadata: metadata(name),
            ..ServiceAccount::default()
        };
        created_by_anyone(accounts.create(&PostParams::default(), &wanted).await)?;
    }
    Ok(())
}

/// Two tests may find the same object missing: the slower one is content, too.
fn created_by_anyone<T>(answer: kube::Result<T>) -> Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path)
        .body(Vec::new())
        .context("cannot build a request")
}

fn flag(name: &str, path: &Path) -> std::ffi::OsString {
    let mut flag = std::ffi::OsString::from(format!("--{name}="));
    flag.push(path);
    flag
}
