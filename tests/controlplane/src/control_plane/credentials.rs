//! Certificates, tokens, kubeconfigs and the clients made of them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};

use super::ControlPlane;
use crate::audit;
use crate::pki::{self, Credential};
use crate::user::{self, Proof, User};

/// Longer than any test.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

impl ControlPlane {
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
    /// Admission is not there to fill in the pod's `serviceAccountName`: the
    /// test must have set it.
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

    pub(super) async fn client_for_admin(&self) -> Result<Client> {
        // Boxed: a ServiceAccount's kubeconfig needs the admin's client.
        Box::pin(self.client(&User::Admin)).await
    }

    pub(super) fn write_files(&self) -> Result<()> {
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

    pub(super) fn write_credential(
        &self,
        stem: &str,
        credential: &Credential,
    ) -> Result<(PathBuf, PathBuf)> {
        let certificate = format!("{stem}.crt");
        Ok((
            self.workdir.file(&certificate, &credential.certificate)?,
            self.workdir.file(&format!("{stem}.key"), &credential.key)?,
        ))
    }

    pub(super) fn certificate_kubeconfig(&self, user: &User, group: &str) -> Result<PathBuf> {
        self.named_kubeconfig(&user.file_stem(), &user.username(), group)
    }

    pub(super) fn named_kubeconfig(
        &self,
        stem: &str,
        username: &str,
        group: &str,
    ) -> Result<PathBuf> {
        let name = format!("{stem}.kubeconfig");
        let known = self.workdir.path().join(&name);
        // A kubelet reloads its certificate from the file: it must not change under it.
        if known.is_file() {
            return Ok(known);
        }
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
        self.workdir.file(&name, &config)
    }
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
