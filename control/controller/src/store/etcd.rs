//! The store in an etcd cluster that several controllers share. It uses etcd's leases, watches and
//! transactions.

mod watch;

use super::{
    Action, Entry, Error, Expect, Lease, LeaseId, OpenError, Page, Progress, Revision, Store,
    Watch, Write,
};
use async_trait::async_trait;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error as EtcdError, GetOptions,
    Identity, KeyValue, KvClient, LeaseGrantResponse, PutOptions, TlsOptions, Txn, TxnOp,
    TxnOpResponse,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::Code;
use watch::Watcher;

/// The number of entries per request when all entries are listed.
const ENTRIES_AT_ONCE: usize = 2000;

/// The interval of keep-alive probes on an idle connection. etcd disconnects clients that send them
/// more often than once in 5 s.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// The maximum number of requests in progress, leases apart. More would only wait in etcd, and those
/// that nobody waits for any longer would keep it from the others.
const AT_ONCE: usize = 128;

/// A late request is cancelled after this multiple of the timeout. It is not cancelled earlier: the
/// answers to many cancelled requests end the connection (HTTP/2, ENHANCE_YOUR_CALM).
const CANCELLED_AFTER: u32 = 6;

/// The maximum size of a response. The default of the gRPC library, 4 MiB, is less than what etcd
/// sends in one response.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// The way to make space in etcd. It takes no changes before the alarm is disarmed, even if there is
/// space again.
const MAKE_SPACE: &str = "run `etcdctl compact REVISION` with the revision that `etcdctl endpoint status -w json` shows, \
    `etcdctl defrag` for each member, or raise `--quota-backend-bytes`, and then `etcdctl alarm disarm`";

/// The address of etcd and the key prefix to use.
#[derive(Clone)]
pub struct EtcdSettings {
    /// The endpoints, `http://address:port` or `https://address:port`, one per member.
    pub endpoints: Vec<String>,
    /// The prefix of all keys. Controllers with the same prefix form one cluster.
    pub prefix: String,
    /// User name and password, if etcd requires them.
    pub user: Option<(String, String)>,
    /// TLS settings for `https` endpoints.
    pub tls: Option<EtcdTls>,
    /// The timeout of a request.
    pub timeout: Duration,
}

/// The credentials of controller and etcd.
#[derive(Clone)]
pub struct EtcdTls {
    /// The certificate of the authority that signed etcd's certificates, PEM.
    pub authority: String,
    /// The controller's certificate and key, PEM, if etcd requires a client certificate.
    pub identity: Option<(String, String)>,
}

/// A store in etcd, for any number of controllers.
pub struct Etcd {
    client: Client,
    prefix: String,
    timeout: Duration,
    at_once: Arc<Semaphore>,
}

impl Etcd {
    /// Connects, and sends a request so that wrong settings are detected here.
    ///
    /// # Errors
    /// Returns an error if the settings are contradictory, or etcd does not respond or rejects the
    /// request.
    pub async fn connect(settings: EtcdSettings) -> Result<Etcd, OpenError> {
        let endpoints = settings.endpoints.join(", ");
        let options = options(&settings);
        let connecting = Client::connect(settings.endpoints, Some(options));
        let client = tokio::time::timeout(settings.timeout, connecting)
            .await
            .map_err(|_| OpenError::Unavailable(format!("etcd at {endpoints} does not respond")))?
            .map_err(|error| unconnected(&endpoints, &error))?;
        let etcd = Etcd {
            client,
            prefix: settings.prefix,
            timeout: settings.timeout,
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
        };
        match etcd.list("", None, 1).await {
            Ok(_) => Ok(etcd),
            Err(e) => Err(OpenError::Unavailable(format!("etcd at {endpoints}: {e}"))),
        }
    }

    fn kv(&self) -> KvClient {
        self.client
            .kv_client()
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
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

    /// Sends a request as soon as fewer than [`AT_ONCE`] are in progress.
    async fn in_turn<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, EtcdError>> + Send + 'static,
    ) -> Result<T, Failure> {
        let (turn, longest) = (self.at_once.clone(), self.timeout * CANCELLED_AFTER);
        let answer = async move {
            let turn = turn.acquire_owned().await.expect("it is never closed");
            let sent = tokio::spawn(async move {
                let answer = tokio::time::timeout(longest, request).await;
                drop(turn);
                answer
            });
            sent.await
        };
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(Ok(Ok(Ok(answer)))) => Ok(answer),
            Ok(Ok(Ok(Err(e)))) => Err(Failure::Refused(e)),
            Ok(Ok(Err(_)) | Err(_)) | Err(_) => Err(Failure::Late(self.timeout)),
        }
    }

    /// Returns the transaction that performs the writes if everything is as expected, and reads the
    /// keys with expectations otherwise.
    fn transaction(&self, expected: &[(String, Expect)], writes: Vec<Write>) -> Txn {
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
        Txn::new()
            .when(compares)
            .and_then(operations)
            .or_else(looks)
    }

    /// Returns a part of a list at the given or the current revision, and that revision.
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
        let mut kv = self.kv();
        let request = async move { kv.get(start, Some(options)).await };
        let mut answer = self.in_turn(request).await?;
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

fn unconnected(endpoints: &str, error: &EtcdError) -> OpenError {
    let reason = format!("etcd at {endpoints}: {}", with_causes(error));
    match error {
        EtcdError::InvalidArgs(_) | EtcdError::InvalidUri(_) | EtcdError::TransportError(_) => {
            OpenError::Settings(reason)
        }
        _ => OpenError::Unavailable(reason),
    }
}

fn options(settings: &EtcdSettings) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(settings.timeout)
        .with_keep_alive(PROBE_EVERY, settings.timeout)
        // Members that are partitioned from the leader reject requests instead of returning stale
        // data.
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
        let (mut kv, key) = (self.kv(), self.full(key));
        let request = async move { kv.get(key, None).await };
        let mut answer = self.in_turn(request).await?;
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
        let transaction = self.transaction(&expected, writes);
        let mut kv = self.kv();
        let request = async move { kv.txn(transaction).await };
        let answer = match self.in_turn(request).await {
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
        self.watch_noting(prefix, after, &Arc::default())
    }

    fn watch_noting(&self, prefix: &str, after: Revision, progress: &Arc<Progress>) -> Watch {
        let progress = progress.clone();
        Watcher::new(&self.client, progress, &self.prefix, prefix, after).into_stream()
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

/// Converts an entry of etcd. Returns `None` for a key that is not UTF-8 text and therefore not one
/// of ours.
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

/// Returns the first key after all those that begin with `prefix`.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // No byte of UTF-8 is 0xff.
    match end.last_mut() {
        Some(last) => *last += 1,
        // In etcd, this means the end of the key space.
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
        // In etcd, 0 means never written.
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

/// Finds the expectation that did not hold, from the entries that the same transaction read
/// instead.
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
    Error::Unavailable("etcd rejected a transaction although its expectations hold".into())
}

/// The failure of a request.
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

    /// Returns whether the requested revision has been compacted.
    fn is_compacted(&self) -> bool {
        self.code() == Some(Code::OutOfRange)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Refused(EtcdError::GRpcStatus(status)) => match status.code() {
                Code::InvalidArgument => Error::Invalid(format!("etcd: {}", status.message())),
                Code::ResourceExhausted if status.message().contains("space") => {
                    Error::Unavailable(format!(
                        "etcd has no space: {}; {MAKE_SPACE}",
                        status.message()
                    ))
                }
                _ => Error::Unavailable(format!("etcd: {}", with_causes(&status))),
            },
            Failure::Refused(e) => Error::Unavailable(format!("etcd: {}", with_causes(&e))),
            Failure::Late(timeout) => {
                Error::Unavailable(format!("etcd did not respond within {timeout:?}"))
            }
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
