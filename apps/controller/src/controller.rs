//! What all requests share: the store, the view of it, and who is to be told.

use crate::audit::Change;
use crate::authority::{Authority, Presented};
use crate::budget::Budget;
use crate::config::Config;
use crate::limit::Limits;
use crate::liveness::Liveness;
use crate::metrics::Metrics;
use crate::push::Streams;
use crate::record::{AuditRecord, EventRecord, emit, key, random_hex, unix_ms};
use crate::store::{Error, Follow, Revision, Role, Store, Update, Write};
use crate::view::{Touched, View};
use futures_util::FutureExt;
use hawser_control::Name;
use hawser_control::node::{Report, Reported};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// How long an answer waits for the view to show what was written. Afterwards the answer is given all the same: the
/// change is in the store.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);

/// Changes that are taken over before readers are let in again.
const CHANGES_AT_ONCE: usize = 256;

/// One controller.
pub struct Controller {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) authority: Authority,
    pub(crate) metrics: Metrics,
    pub(crate) limits: Limits,
    pub(crate) budget: Budget,
    pub(crate) liveness: Liveness,
    pub(crate) streams: Streams,
    /// Who decides.
    pub(crate) role: watch::Receiver<Role>,
    /// True when the controller is to end.
    pub(crate) ending: watch::Sender<bool>,
    view: RwLock<View>,
    /// [`View::complete`], for those who want to know of every change.
    shown: watch::Sender<Revision>,
    /// Those who wait for one revision, so that each is woken once, however many there are.
    waiting: Mutex<BTreeMap<Revision, Vec<oneshot::Sender<()>>>>,
    /// Whether the view has been filled.
    filled: watch::Sender<bool>,
    reports: Mutex<HashMap<Name, Reported>>,
    work: mpsc::UnboundedSender<Touched>,
}

/// What an event is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct About {
    pub(crate) tenant: Option<Name>,
    pub(crate) node: Option<Name>,
    pub(crate) flow: Option<Name>,
    /// The author of the change, for the audit; none: not made on request.
    pub(crate) by: Option<Change>,
}

impl About {
    pub(crate) fn tenant(tenant: &Name) -> About {
        About {
            tenant: Some(tenant.clone()),
            ..About::default()
        }
    }

    pub(crate) fn node(self, node: &Name) -> About {
        About {
            node: Some(node.clone()),
            ..self
        }
    }

    pub(crate) fn flow(self, flow: &Name) -> About {
        About {
            flow: Some(flow.clone()),
            ..self
        }
    }

    pub(crate) fn by(self, change: Change) -> About {
        About {
            by: Some(change),
            ..self
        }
    }
}

impl Controller {
    /// A controller and what its leader has to look at.
    pub(crate) fn new(
        name: String,
        config: Config,
        store: Arc<dyn Store>,
        authority: Authority,
        role: watch::Receiver<Role>,
    ) -> (Arc<Controller>, mpsc::UnboundedReceiver<Touched>) {
        let (work, inbox) = mpsc::unbounded_channel();
        let controller = Controller {
            limits: Limits::new(&config.limits),
            budget: Budget::new(&config.limits),
            liveness: Liveness::default(),
            metrics: Metrics::new(),
            streams: Streams::default(),
            view: RwLock::default(),
            shown: watch::channel(0).0,
            waiting: Mutex::default(),
            filled: watch::channel(false).0,
            ending: watch::channel(false).0,
            reports: Mutex::default(),
            name,
            config,
            store,
            authority,
            role,
            work,
        };
        (Arc::new(controller), inbox)
    }

    /// The store's content, as far as it is known here. Never held over an await.
    pub(crate) fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn view_mut(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest reports of nodes that report here.
    pub(crate) fn reports(&self) -> MutexGuard<'_, HashMap<Name, Reported>> {
        lock(&self.reports)
    }

    /// Keeps the latest report of a node, unless the node was deleted meanwhile.
    pub(crate) fn keep_report(&self, caller: &Presented, report: Report) {
        let reported = Reported {
            node: caller.node.clone(),
            at_unix_ms: unix_ms(),
            report,
        };
        // A deletion is taken over either before, so that the certificate is not valid any more, or after, and then the report
        // is removed.
        let view = self.view();
        if view.accepted(caller).is_some() {
            self.reports().insert(caller.node.clone(), reported);
        }
    }

    /// When a node was last heard of here, milliseconds since 1970.
    pub(crate) fn seen_unix_ms(&self, node: &Name) -> Option<u64> {
        self.reports().get(node).map(|reported| reported.at_unix_ms)
    }

    /// Writes, together with the event that tells of it and the audit's entry, and waits until it can be read back here.
    pub(crate) async fn commit(
        &self,
        mut writes: Vec<Write>,
        about: About,
        kind: &str,
        message: String,
    ) -> Result<Revision, Error> {
        let About {
            tenant,
            node,
            flow,
            by,
        } = about;
        let at_unix_ms = unix_ms();
        let audit = by.map(|change| change.record(kind, tenant.clone(), at_unix_ms));
        writes.extend(audit.as_ref().map(AuditRecord::write));
        let event = EventRecord {
            at_unix_ms,
            tenant,
            node,
            flow,
            kind: kind.to_owned(),
            message,
        };
        // Ordered by time, so that the oldest are found when there are too many.
        let event_key = format!("{}{at_unix_ms:013}-{}", key::EVENT, random_hex::<6>());
        writes.push(Write::put(event_key, emit(&event)));
        let revision = self.store.commit(writes).await?;
        if let Some(audit) = audit {
            audit.log(revision);
        }
        self.shown(revision).await;
        Ok(revision)
    }

    /// Waits until the view has all that was written up to that revision.
    pub(crate) async fn shown(&self, revision: Revision) {
        let waiting = {
            let mut waiting = lock(&self.waiting);
            // Looked at under the lock that `take_over` takes after it has changed this.
            if *self.shown.borrow() >= revision {
                return;
            }
            let (wake, woken) = oneshot::channel();
            waiting.entry(revision).or_default().push(wake);
            woken
        };
        if tokio::time::timeout(SHOWN_WITHIN, waiting).await.is_err() {
            tracing::warn!(revision, "the store has not shown yet what was written");
        }
    }

    /// Waits until the view has been filled from the store.
    pub(crate) async fn filled(&self) {
        // The sender is part of self, so it cannot be gone.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    pub(crate) fn is_filled(&self) -> bool {
        *self.filled.borrow()
    }

    /// Waits until the controller is to end.
    pub(crate) async fn ended(&self) {
        // The sender is part of self, so it cannot be gone.
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
    }

    /// Changes of the view, by the revision that is complete.
    pub(crate) fn changes(&self) -> watch::Receiver<Revision> {
        self.shown.subscribe()
    }

    /// Takes the store's changes over, for ever.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut follow = Follow::new(self.store.clone(), "");
        loop {
            let mut updates = vec![follow.next().await];
            while updates.len() < CHANGES_AT_ONCE
                && let Some(update) = follow.next().now_or_never()
            {
                updates.push(update);
            }
            self.take_over(updates);
        }
    }

    fn take_over(&self, updates: Vec<Update>) {
        let mut touched = Vec::new();
        let mut is_new = false;
        let complete = {
            let mut view = self.view_mut();
            for update in updates {
                match update {
                    Update::Change(change) => touched.push(view.apply(change)),
                    Update::All(entries) => {
                        let before = std::mem::replace(&mut *view, View::of(entries));
                        // Told below, after what is new. A node may have been deleted and made again unseen.
                        touched.retain(|touched| matches!(touched, Touched::Deleted(_)));
                        touched.extend(before.nodes_gone_in(&view).map(Touched::Deleted));
                        is_new = true;
                    }
                }
            }
            view.complete
        };
        if is_new {
            self.streams.renew_all();
            self.filled.send_replace(true);
            // Whoever leads looks at everything.
            let _ = self.work.send(Touched::Nothing);
        }
        for touched in touched {
            self.tell(touched);
        }
        self.shown.send_replace(complete);
        let woken = {
            let mut waiting = lock(&self.waiting);
            let later = waiting.split_off(&(complete + 1));
            std::mem::replace(&mut *waiting, later)
        };
        for wake in woken.into_values().flatten() {
            // Who does not wait any more need not be woken.
            let _ = wake.send(());
        }
    }

    /// Tells streams and the leader's task.
    fn tell(&self, touched: Touched) {
        match &touched {
            Touched::Flow { nodes, .. } => nodes.iter().for_each(|node| self.streams.renew(node)),
            Touched::Policy { flow, nodes } => nodes
                .iter()
                .for_each(|node| self.streams.policy(node, flow)),
            Touched::Node(name) => self.streams.renew(name),
            Touched::Deleted(name) => {
                self.forget(name);
                self.streams.renew(name);
            }
            Touched::Registration(name) => self
                .peers(name)
                .iter()
                .for_each(|node| self.streams.renew(node)),
            Touched::Lost(_)
            | Touched::Received(_)
            | Touched::Health(_)
            | Touched::Observation(_)
            | Touched::Event
            | Touched::Nothing => {}
        }
        let is_work = matches!(
            touched,
            Touched::Registration(_)
                | Touched::Lost(_)
                | Touched::Received(_)
                | Touched::Health(_)
                | Touched::Observation(_)
        );
        if is_work {
            // The receiver ends with the controller.
            let _ = self.work.send(touched);
        }
    }

    /// Forgets what is known of a deleted node here alone, so that a later node of the name inherits nothing. The node's lease
    /// runs out by itself.
    fn forget(&self, node: &Name) {
        self.reports().remove(node);
        self.budget.forget(node);
        self.liveness.forget(node);
    }

    /// The nodes to which a node's paths matter: those that eliminate what it sends, and itself.
    fn peers(&self, name: &Name) -> Vec<Name> {
        let view = self.view();
        let Some(node) = view.nodes.get(name) else {
            return vec![];
        };
        let mut peers: Vec<Name> = vec![name.clone()];
        let egresses = node
            .sends
            .iter()
            .filter_map(|flow| Some(view.flow(flow)?.value.flow.egress.clone()));
        peers.extend(egresses);
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
