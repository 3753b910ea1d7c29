//! The store in an etcd cluster that several controllers share. Leases, watches and transactions are etcd's own.

mod watch;

use super::{
    Action, Entry, Error, Expect, Lease, LeaseId, OpenError, Page, Revision, Store, Watch, Write,
};
use async_trait::async_trait;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error as EtcdError, GetOptions,
    Identity, KeyValue, KvClient, LeaseGrantResponse, PutOptions, TlsOptions, Txn, TxnOp,
    TxnOpResponse,
};
use std::time::Duration;
use tonic::Code;
use watch::Watcher;

/// Entries that are fetched at a time when all are wanted.
const ENTRIES_AT_ONCE: usize = 2000;

/// How often an idle connection is tried. etcd hangs up on those who do it more than once in 5 s.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// The gRPC library's own limit of 4 MiB is less than what etcd packs into one answer.
const ANSWER_BYTES: usize = 256 << 20;

/// Where etcd is, and which part of it is ours.
#[derive(Clone)]
pub struct EtcdSettings {
    /// `http://address:port` or `https://address:port`, one for each member.
    pub endpoints: Vec<String>,
    /// All keys begin with it. Controllers with the same prefix are one cluster.
    pub prefix: String,
    /// Name and password, where etcd wants them.
    pub user: Option<(String, String)>,
    /// For `https` endpoints.
    pub tls: Option<EtcdTls>,
    /// After which a request has failed.
    pub timeout: Duration,
}

/// How controller and etcd know each other.
#[derive(Clone)]
pub struct EtcdTls {
    /// The authority of etcd's certificates, PEM.
    pub authority: String,
    /// The controller's certificate and key, PEM, where etcd wants a certificate.
    pub identity: Option<(String, String)>,
}

/// State in etcd, for any number of controllers.
pub struct Etcd {
    client: Client,
    prefix: String,
    timeout: Duration,
}

impl Etcd {
    /// Connects, and asks for something so that wrong settings are found here.
    ///
    /// # Errors
    /// The settings are contradictory, or etcd does not answer or refuses.
    pub async fn connect(settings: EtcdSettings) -> Result<Etcd, OpenError> {
        let places = settings.endpoints.join(", ");
        let options = options(&settings);
        let client = match tokio::time::timeout(
            settings.timeout,
            Client::connect(settings.endpoints, Some(options)),
        )
        .await
        {
            Ok(Ok(client)) => client,
            Ok(Err(
                e @ (EtcdError::InvalidArgs(_)
                | EtcdError::InvalidUri(_)
                | EtcdError::TransportError(_)),
            )) => {
                return Err(OpenError::Settings(format!(
                    "etcd at {places}: {}",
                    with_causes(&e)
                )));
            }
            Ok(Err(e)) => {
                return Err(OpenError::Unavailable(format!(
                    "etcd at {places}: {}",
                    with_causes(&e)
                )));
            }
            Err(_) => {
                return Err(OpenError::Unavailable(format!(
                    "etcd at {places} does not answer"
                )));
            }
        };
        let etcd = Etcd {
            client,
            prefix: settings.prefix,
            timeout: settings.timeout,
        };
        match etcd.list("", None, 1).await {
            Ok(_) => Ok(etcd),
            Err(e) => Err(OpenError::Unavailable(format!("etcd at {places}: {e}"))),
        }
    }

    fn kv(&self) -> KvClient {
        self.client
            .kv_client()
            .max_decoding_message_size(ANSWER_BYTES)
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    async fn call<T>(
        &self,
        request: impl Future<Output = Result<T, EtcdError>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.timeout, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => Err(Failure::Refused(e)),
            Err(_) => Err(Failure::Late(self.timeout)),
        }
    }

    /// A part of a list, as of a revision or of now, and that revision.
    async fn range(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<(Page, Revision), Failure> {
        let prefix = self.full(prefix);
        let start = match after.map(|after| self.full(after)) {
            Some(after) if after >= prefix => after + "\0",
            _ => prefix.clone(),
        };
        let limit = i64::try_from(limit.max(1)).unwrap_or(i64::MAX);
        let mut options = GetOptions::new()
            .with_range(end_of(&prefix))
            .with_limit(limit);
        if let Some(at) = at {
            options = options.with_revision(at.cast_signed());
        }
        let mut answer = self.call(self.kv().get(start, Some(options))).await?;
        let revision = answer
            .header()
            .map_or(0, |header| header.revision().cast_unsigned());
        let more = answer.more();
        let entries = answer
            .take_kvs()
            .into_iter()
            .filter_map(|kv| entry(&self.prefix, kv))
            .collect();
        Ok((Page { entries, more }, at.unwrap_or(revision)))
    }
}

fn options(settings: &EtcdSettings) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(settings.timeout)
        .with_keep_alive(PROBE_EVERY, settings.timeout)
        // Members that have lost the others refuse, instead of answering with what they last knew.
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some((name, password)) = &settings.user {
        options = options.with_user(name, password);
    }
    if let Some(EtcdTls {
        authority,
        identity,
    }) = &settings.tls
    {
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(authority));
        if let Some((certificate, key)) = identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        options = options.with_tls(tls);
    }
    options
}

#[async_trait]
impl Store for Etcd {
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        let mut answer = self.call(self.kv().get(self.full(key), None)).await?;
        Ok(answer
            .take_kvs()
            .into_iter()
            .find_map(|kv| entry(&self.prefix, kv)))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page, Error> {
        Ok(self.range(prefix, after, limit, None).await?.0)
    }

    async fn list_all(&self, prefix: &str) -> Result<(Vec<Entry>, Revision), Error> {
        let (mut page, mut revision) = self.range(prefix, None, ENTRIES_AT_ONCE, None).await?;
        let mut entries = page.entries;
        while page.more {
            let after = entries.last().map(|e| e.key.clone());
            match self
                .range(prefix, after.as_deref(), ENTRIES_AT_ONCE, Some(revision))
                .await
            {
                Ok((next, _)) => page = next,
                Err(e) if e.is_compacted() => {
                    entries.clear();
                    (page, revision) = self.range(prefix, None, ENTRIES_AT_ONCE, None).await?;
                }
                Err(e) => return Err(e.into()),
            }
            entries.append(&mut page.entries);
        }
        Ok((entries, revision))
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, Error> {
        super::check_request(&writes)?;
        let expected: Vec<(String, Expect)> = writes
            .iter()
            .filter(|write| write.expect != Expect::Any)
            .map(|write| (write.key.clone(), write.expect))
            .collect();
        let lease = writes.iter().find_map(lease_of);
        let compares: Vec<Compare> = expected
            .iter()
            .map(|(key, expect)| compare(self.full(key), *expect))
            .collect();
        let looks: Vec<TxnOp> = expected
            .iter()
            .map(|(key, _)| TxnOp::get(self.full(key), Some(GetOptions::new().with_keys_only())))
            .collect();
        let operations: Vec<TxnOp> = writes
            .into_iter()
            .filter_map(|write| operation(self.full(&write.key), write.action))
            .collect();

        let request = Txn::new()
            .when(compares)
            .and_then(operations)
            .or_else(looks);
        let answer = match self.call(self.kv().txn(request)).await {
            Ok(answer) => answer,
            Err(e) if e.code() == Some(Code::NotFound) => {
                return Err(Error::LeaseGone(lease.unwrap_or(0)));
            }
            Err(e) => return Err(e.into()),
        };
        if answer.succeeded() {
            return Ok(answer
                .header()
                .map_or(0, |header| header.revision().cast_unsigned()));
        }
        Err(conflict(&expected, &answer.op_responses()))
    }

    fn watch(&self, prefix: &str, after: Revision) -> Watch {
        Watcher::new(self.client.watch_client(), &self.prefix, prefix, after).into_stream()
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, Error> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000).max(1)).unwrap_or(i64::MAX);
        let mut leases = self.client.lease_client();
        let answer: LeaseGrantResponse = self.call(leases.grant(seconds, None)).await?;
        Ok(Lease {
            id: answer.id(),
            ttl: Duration::from_secs(answer.ttl().max(0).cast_unsigned()),
        })
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let mut leases = self.client.lease_client();
        match self.call(leases.keep_alive(lease)).await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(EtcdError::LeaseKeepAliveError(_))) => {
                Err(Error::LeaseGone(lease))
            }
            Err(e) => Err(e.into()),
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let mut leases = self.client.lease_client();
        match self.call(leases.revoke(lease)).await {
            Ok(_) => Ok(()),
            Err(e) if e.code() == Some(Code::NotFound) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// None for a key that is not text, so not ours.
fn entry(prefix: &str, kv: KeyValue) -> Option<Entry> {
    let revision = kv.mod_revision().cast_unsigned();
    let (key, value) = kv.into_key_value();
    let key = std::str::from_utf8(&key).ok()?.strip_prefix(prefix)?.into();
    Some(Entry {
        key,
        value: value.into(),
        revision,
    })
}

/// The first key after all those that begin with `prefix`.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // No byte of UTF-8 is 0xff.
    match end.last_mut() {
        Some(last) => *last += 1,
        // etcd's word for: to the end.
        None => end.push(0),
    }
    end
}

fn lease_of(write: &Write) -> Option<LeaseId> {
    match write.action {
        Action::Put { lease, .. } => lease,
        _ => None,
    }
}

fn compare(key: String, expect: Expect) -> Compare {
    let revision = match expect {
        Expect::Revision(revision) => revision.cast_signed(),
        // etcd's word for: never written.
        Expect::Absent | Expect::Any => 0,
    };
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

fn operation(key: String, action: Action) -> Option<TxnOp> {
    match action {
        Action::Put { value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease));
            Some(TxnOp::put(key, &*value, options))
        }
        Action::Delete => Some(TxnOp::delete(key, None)),
        Action::Check => None,
    }
}

/// Which of the expectations did not hold, from what the same transaction read instead.
fn conflict(expected: &[(String, Expect)], read: &[TxnOpResponse]) -> Error {
    for ((key, expect), read) in expected.iter().zip(read) {
        let TxnOpResponse::Get(read) = read else {
            continue;
        };
        let found = read
            .kvs()
            .first()
            .map(|kv| kv.mod_revision().cast_unsigned());
        let wanted = match expect {
            Expect::Revision(revision) => Some(*revision),
            Expect::Absent | Expect::Any => None,
        };
        if found != wanted {
            return Error::Conflict {
                key: key.clone(),
                found,
            };
        }
    }
    Error::Unavailable("etcd refused a transaction whose expectations hold".into())
}

/// A request without its answer.
enum Failure {
    Refused(EtcdError),
    Late(Duration),
}

impl Failure {
    fn code(&self) -> Option<Code> {
        match self {
            Failure::Refused(EtcdError::GRpcStatus(status)) => Some(status.code()),
            _ => None,
        }
    }

    /// Whether the revision that was asked for is no longer known.
    fn is_compacted(&self) -> bool {
        self.code() == Some(Code::OutOfRange)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Refused(EtcdError::GRpcStatus(status)) => match status.code() {
                Code::InvalidArgument => Error::Invalid(format!("etcd: {}", status.message())),
                Code::ResourceExhausted => Error::Unavailable(format!(
                    "etcd has no room: {}; compact and defragment it, or raise its quota",
                    status.message()
                )),
                _ => Error::Unavailable(format!("etcd: {}", with_causes(&status))),
            },
            Failure::Refused(e) => Error::Unavailable(format!("etcd: {}", with_causes(&e))),
            Failure::Late(timeout) => {
                Error::Unavailable(format!("etcd did not answer in {timeout:?}"))
            }
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |said, cause| format!("{said}: {cause}"))
}
