//! The lifetime of a controller, from start to exit.

use crate::api;
use crate::audit::Origin;
use crate::authority::{Authority, write_private};
use crate::config::{Config, EtcdConfig, StoreConfig};
use crate::controller::{About, Controller};
use crate::limit::Checked;
use crate::record::{TokenRecord, key, random_hex};
use crate::store::{
    Election, Embedded, Entry, Error, Etcd, EtcdSettings, EtcdTls, Expect, Revision, Store, Write,
};
use crate::{format, leader, listener};
use anyhow::{Context, Result, bail, ensure};
use hawser_io::clock::unix_ms;
use hawser_io::file;
use hawser_model::access::{IssuedToken, Scope, Token};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The name and the file of the first operator's token.
const FIRST_TOKEN: &str = "admin";
pub(crate) const FIRST_TOKEN_FILE: &str = "admin.token";

/// The timeout for the first read of the store at the start.
const STORE_START_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout for a single request to the store.
const STORE_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that tasks in the background have to end when the controller stops: a decision waits for
/// the store and then for the view.
const TASKS_TIMEOUT: Duration = Duration::from_secs(10);

/// A running controller. When dropped without [`Server::stop`], it accepts no more connections and
/// no longer follows the store.
pub struct Server {
    controller: Arc<Controller>,
    /// The proof for writes that no client has requested.
    own: Checked,
    election: Election,
    /// The names and addresses for its certificate, which is reissued for each new list.
    names: watch::Sender<Vec<String>>,
    listening: Listening,
    /// The tasks that decide and write without a request, forever.
    deciding: JoinSet<()>,
    /// The task that applies the store's changes to the view, forever.
    following: JoinSet<()>,
}

impl Server {
    /// Starts a controller on the current tokio runtime. It serves requests when this returns.
    ///
    /// # Errors
    /// Returns an error if its address, its files or its store cannot be used. The text says what
    /// to do.
    pub async fn start(config: Config) -> Result<Server> {
        config.check()?;
        // This creates the directory that contains the store.
        let authority = Authority::open(&config.state)?;
        let store = open_store(&config).await?;
        Server::serve(store, authority, config).await
    }

    /// Starts a controller on a store that is already open. Several controllers may share the
    /// store.
    ///
    /// # Errors
    /// Returns the same errors as [`Server::start`].
    pub async fn start_on(store: Arc<dyn Store>, config: Config) -> Result<Server> {
        config.check()?;
        let authority = Authority::open(&config.state)?;
        Server::serve(store, authority, config).await
    }

    async fn serve(store: Arc<dyn Store>, authority: Authority, config: Config) -> Result<Server> {
        format::check(&*store).await?;
        share_authority(&*store, &authority, &config.state).await?;
        let name = config.name.clone().unwrap_or_else(random_name);
        // The election's lease is shorter than the nodes' leases: the store needs time to notice
        // that the leader's lease has expired, and the next leader to examine all flows. A new
        // leader decides within the lease time of nodes.
        let election = Election::start(store.clone(), key::LEADER, &name, config.lease() * 2 / 3);
        let (controller, own, work) =
            Controller::new(name, config, store, authority, election.role());
        let following = JoinSet::from_iter([controller.clone().follow(own.clone())]);
        tokio::time::timeout(STORE_START_TIMEOUT, controller.filled())
            .await
            .context("the store did not respond in time; see the log")?;
        if let Some(fault) = controller.view().fault() {
            bail!(fault);
        }
        let mut deciding = JoinSet::new();
        deciding.spawn(leader::run(controller.clone(), own.clone(), work));
        deciding.spawn(controller.clone().write_seen_periodically(own.clone()));
        deciding.spawn(controller.clone().report_silent_periodically(own.clone()));
        let keeper = controller.clone();
        deciding.spawn(async move { keeper.session.keep().await });
        make_first_token(&controller, &own).await?;

        let names = watch::Sender::new(controller.config.names.clone());
        let listening = Listening::start(&controller, names.subscribe()).await?;
        tracing::info!(name = controller.name, address = %listening.address, "controller ready");
        Ok(Server {
            controller,
            own,
            election,
            names,
            listening,
            deciding,
            following,
        })
    }

    /// Returns the address that it listens on, with the port that the system chose if the
    /// configured port is 0.
    pub fn address(&self) -> SocketAddr {
        self.listening.address
    }

    /// Returns the address that serves metrics and health without TLS.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.listening.metrics_address
    }

    /// Returns the certificate of its authority, PEM, which clients have to trust.
    pub fn authority_pem(&self) -> &str {
        self.controller.authority.pem()
    }

    /// Returns the path of the file with the first operator's token. It exists if this controller
    /// created the token.
    pub fn first_token_file(&self) -> PathBuf {
        self.controller.config.state.join(FIRST_TOKEN_FILE)
    }

    /// Returns the state that its [`router`](crate::api::router) works with.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Returns whether this controller is the leader.
    pub fn leads(&self) -> bool {
        self.controller.role.borrow().leadership().is_some()
    }

    /// Applies a reloaded configuration: reissues the server's certificate with its names. Logs a
    /// warning if anything else differs, which takes effect only after a restart.
    pub fn reload(&self, config: &Config) {
        let running = &self.controller.config;
        if (Config {
            names: running.names.clone(),
            ..config.clone()
        }) != *running
        {
            tracing::warn!(
                "only `names` was reloaded; other changes of the configuration need a restart"
            );
        }
        self.names.send_replace(config.names.clone());
    }

    /// Stops the controller: ends streams, lets requests and decisions finish, and resigns the
    /// leadership. All of its tasks have ended when this returns, and nothing holds the store
    /// except the holders of [`Server::controller`] and of routers.
    pub async fn stop(mut self) {
        self.controller.shutdown.send_replace(true);
        self.listening.ended().await;
        self.write_seen().await;
        self.deciding.shutdown().await;
        // Decisions wait for the view, so the store is followed until they have ended.
        let left = self.controller.tasks.end_within(TASKS_TIMEOUT).await;
        if left > 0 {
            tracing::warn!(left, "some decisions were not written before the shutdown");
        }
        self.following.shutdown().await;
        self.election.resign().await;
    }

    async fn write_seen(&self) {
        match tokio::time::timeout(STORE_REQUEST_TIMEOUT, self.controller.write_seen(&self.own))
            .await
        {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!("cannot store the times of the last reports: {error}")
            }
            Err(_) => {
                tracing::warn!(
                    "cannot store the times of the last reports: the store does not respond"
                )
            }
        }
    }
}

/// The listeners of a controller.
struct Listening {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    /// One task for each listener. It ends after the shutdown, when all its connections have ended.
    tasks: JoinSet<()>,
}

impl Listening {
    async fn start(
        controller: &Arc<Controller>,
        names: watch::Receiver<Vec<String>>,
    ) -> Result<Listening> {
        let (listener, address) = bind(controller.config.listen).await?;
        let for_metrics = match controller.config.metrics_listen {
            Some(wanted) => Some(bind(wanted).await?),
            None => None,
        };
        let tls = listener::tls(controller, names)?;
        let router = api::router(controller);
        let mut tasks = JoinSet::new();
        tasks.spawn(listener::serve(controller.clone(), listener, tls, router));
        let metrics_address = for_metrics.map(|(listener, address)| {
            let router = api::health::plain_router(controller);
            tasks.spawn(listener::serve_plain(controller.clone(), listener, router));
            address
        });
        Ok(Listening {
            address,
            metrics_address,
            tasks,
        })
    }

    /// Waits until all connections have ended.
    async fn ended(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!("the task of a listener failed: {error}");
            }
        }
    }
}

fn random_name() -> String {
    format!("controller-{}", random_hex::<4>())
}

async fn bind(wanted: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(wanted)
        .await
        .with_context(|| format!("cannot listen on {wanted}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

pub(crate) async fn open_store(config: &Config) -> Result<Arc<dyn Store>> {
    match &config.store {
        StoreConfig::Embedded => {
            let file = config.state.join("database");
            let store = tokio::task::spawn_blocking(move || Embedded::open(file)).await??;
            Ok(Arc::new(store))
        }
        StoreConfig::Etcd(etcd) => Ok(Arc::new(Etcd::connect(settings(etcd)?).await?)),
    }
}

fn settings(etcd: &EtcdConfig) -> Result<EtcdSettings> {
    let tls = tls_settings(etcd)?;
    let user = match (&etcd.user, &etcd.password_file) {
        (Some(user), Some(file)) => Some((user.clone(), read(file)?.trim_end().to_owned())),
        (None, None) => None,
        _ => bail!("store: `user` and `password_file` must be given together"),
    };
    Ok(EtcdSettings {
        endpoints: etcd.endpoints.clone(),
        prefix: etcd.prefix.clone(),
        user,
        tls,
        timeout: STORE_REQUEST_TIMEOUT,
    })
}

fn tls_settings(etcd: &EtcdConfig) -> Result<Option<EtcdTls>> {
    let identity = match (&etcd.certificate, &etcd.key) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        (None, None) => None,
        _ => bail!("store: `certificate` and `key` go together"),
    };
    let Some(authority) = &etcd.authority else {
        ensure!(
            identity.is_none(),
            "store: a certificate needs the cluster's `authority` too"
        );
        return Ok(None);
    };
    Ok(Some(EtcdTls {
        authority: read(authority)?,
        identity,
    }))
}

fn read(path: &Path) -> Result<String> {
    file::read_text(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Checks that this controller has the same authority as the others of the store. The first
/// controller stores the digest of its authority.
async fn share_authority(store: &dyn Store, authority: &Authority, state: &Path) -> Result<()> {
    let digest = authority.digest();
    let write = Write::put(key::AUTHORITY, digest.as_bytes()).when(Expect::Absent);
    match store.commit(vec![write]).await {
        Ok(_) => Ok(()),
        Err(Error::Conflict { .. }) => {
            let known = store.get(key::AUTHORITY).await?;
            ensure!(
                (known.as_ref()).is_some_and(|known| authority.trusts(&known.value)),
                "the controllers of this store have another authority: copy authority.pem and authority.key from one of \
                 them to {}",
                state.display()
            );
            follow_rotation(store, known, &digest).await
        }
        Err(error) => Err(error.into()),
    }
}

/// Stores the digest of the authority that issues certificates now.
async fn follow_rotation(store: &dyn Store, known: Option<Entry>, digest: &str) -> Result<()> {
    let Some(known) = known.filter(|known| *known.value != *digest.as_bytes()) else {
        return Ok(());
    };
    let write = Write::put(key::AUTHORITY, digest.as_bytes());
    let writes = vec![write.when(Expect::Revision(known.revision))];
    match store.commit(writes).await {
        // Another controller has stored its own, which trusts this one's.
        Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the first operator's token with a new secret.
pub(crate) fn first_token() -> IssuedToken {
    api::tokens::issue(Token {
        name: FIRST_TOKEN.parse().expect("it is a name"),
        scope: Scope::Admin,
        tenant: None,
        created_unix_ms: unix_ms(),
        expires_unix_ms: None,
        used_unix_ms: None,
    })
}

/// Creates the first operator's token if there is none; without one, no operator could create
/// others.
async fn make_first_token(controller: &Controller, own: &Checked) -> Result<()> {
    if !controller.view().tokens.is_empty() {
        return Ok(());
    }
    let issued = first_token();
    let file = controller.config.state.join(FIRST_TOKEN_FILE);
    // The file is written first: a stored token whose secret is lost would lock out all operators.
    write_private(&file, &format!("{}\n", issued.secret))?;
    match store_first_token(controller, own, &issued).await {
        Ok(_) => {
            tracing::info!(file = %file.display(), "first operator's token created");
            Ok(())
        }
        // Another controller created the token at the same time, and its own file holds the secret.
        Err(Error::Conflict { .. }) => {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
        }
        Err(error) => Err(error.into()),
    }
}

async fn store_first_token(
    controller: &Controller,
    own: &Checked,
    issued: &IssuedToken,
) -> Result<Revision, Error> {
    let by = Origin::controller(&controller.name).makes(&issued.token.name);
    let message = format!("{} created the first token", controller.name);
    let writes = vec![TokenRecord::put(issued).when(Expect::Absent)];
    controller
        .commit(
            own,
            writes,
            About::default().by(by),
            "token_created",
            message,
        )
        .await
}
