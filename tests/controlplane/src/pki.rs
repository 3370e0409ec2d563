//! The certificates and keys of one control plane.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};

/// A certificate authority for the API server and for its clients.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Credential {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("swimlet-rig", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self(issuer))
    }

    /// The authority's own certificate, in PEM.
    pub(crate) fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A credential for a server that is reached under `addresses`.
    pub(crate) fn server(&self, common_name: &str, addresses: &[IpAddr]) -> Result<Credential> {
        let mut params = CertificateParams::new(vec![String::from("localhost")])?;
        params.distinguished_name = name(common_name, None);
        params
            .subject_alt_names
            .extend(addresses.iter().copied().map(SanType::IpAddress));
        self.issue(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A credential that the API server takes for `user` in `group`: the common
    /// name and the organization, as x509 authentication reads them.
    pub(crate) fn client(&self, user: &str, group: &str) -> Result<Credential> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(user, Some(group));
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Credential> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok(Credential {
            certificate: params.signed_by(&key, &self.0)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A key that signs ServiceAccount tokens, and the public one that checks them,
/// in PEM.
pub(crate) fn service_account_keys() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name
}

/// A token that nobody guesses, in hexadecimal.
pub(crate) fn random_token() -> Result<String> {
    let mut bytes = [0_u8; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
