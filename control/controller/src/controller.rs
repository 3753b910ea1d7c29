//! The state that all requests share: the store, the view of it, and the streams to notify.

use crate::audit::Change;
use crate::authority::{Authority, Presented};
use crate::budget::Budget;
use crate::config::Config;
use crate::heard::Heard;
use crate::limit::{Checked, CheckedStore, Limits};
use crate::liveness::Liveness;
use crate::metrics::Metrics;
use crate::record::{AuditRecord, EventRecord, emit, key, random_hex};
use crate::session::Session;
use crate::settings;
use crate::store::{
    Error, Expect, Follow, Noted, Progress, Revision, Role, Store, Update, Write, WriteFailures,
};
use crate::streams::Streams;
use crate::tasks::Tasks;
use crate::token_use::TokenUses;
use crate::view::{Touched, View};
use futures_util::FutureExt;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::node::{Report, Reported};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// The maximum time that a response waits until the view contains its change. After that the
/// response is sent anyway, because the change is in the store.
const APPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The time for which a change that the store did not take counts against the controller's readiness.
const FAILURE_COUNTS: Duration = Duration::from_secs(60);

/// The time after which a view that is not known to be complete counts as outdated. Its store is asked
/// every 5 s, and has 5 s to answer.
const OUTDATED_AFTER: Duration = Duration::from_secs(12);

/// The maximum number of changes that are applied before readers get access to the view again.
const CHANGES_AT_ONCE: usize = 256;

/// A controller.
pub struct Controller {
    pub(crate) name: String,
    pub(crate) config: Config,
    store: CheckedStore,
    pub(crate) authority: Authority,
    pub(crate) metrics: Metrics,
    pub(crate) limits: Limits,
    pub(crate) budget: Budget,
    /// The lease under which this controller writes what nodes report about themselves.
    pub(crate) session: Session,
    pub(crate) liveness: Liveness,
    pub(crate) heard: Heard,
    pub(crate) token_uses: TokenUses,
    pub(crate) streams: Streams,
    /// Tasks in the background that end by themselves, or when the controller shuts down.
    pub(crate) tasks: Tasks,
    /// The role of this controller in the election of the leader.
    pub(crate) role: watch::Receiver<Role>,
    /// Whether the controller is shutting down.
    pub(crate) shutdown: watch::Sender<bool>,
    view: RwLock<View>,
    /// [`View::complete`], for tasks that follow every change.
    applied: watch::Sender<Revision>,
    /// Tasks that wait for a revision. Each is woken only once, regardless of the number of changes
    /// in between.
    waiting: Mutex<BTreeMap<Revision, Vec<oneshot::Sender<()>>>>,
    /// Whether the view has been filled from the store.
    filled: watch::Sender<bool>,
    reports: Mutex<HashMap<Name, Reported>>,
    failures: Arc<WriteFailures>,
    /// Whether the view is up to date.
    progress: Mutex<Arc<Progress>>,
    work: mpsc::UnboundedSender<Touched>,
}

/// The effects of updates on the view.
struct Applied {
    touched: Vec<Touched>,
    /// Whether the view was replaced.
    is_new: bool,
    /// [`View::complete`].
    complete: Revision,
}

/// The subject of an event.
#[derive(Debug, Clone, Default)]
pub(crate) struct About {
    pub(crate) tenant: Option<Name>,
    pub(crate) node: Option<Name>,
    pub(crate) flow: Option<Name>,
    /// The author of the change, for the audit log; `None` if it was not made on request.
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

    /// Adds the event and the audit entry of writes to them. Returns the entry, if there is one.
    pub(crate) fn document(
        mut self,
        writes: &mut Vec<Write>,
        kind: &str,
        message: String,
    ) -> Option<AuditRecord> {
        let at_unix_ms = unix_ms();
        let change = self.by.take();
        let audit = change.map(|change| change.record(kind, self.tenant.clone(), at_unix_ms));
        writes.extend(audit.as_ref().map(AuditRecord::write));
        writes.push(self.event(kind, message, at_unix_ms));
        audit
    }

    /// Returns the write of an event with this subject.
    fn event(self, kind: &str, message: String, at_unix_ms: u64) -> Write {
        let event = EventRecord {
            at_unix_ms,
            tenant: self.tenant,
            node: self.node,
            flow: self.flow,
            kind: kind.to_owned(),
            message,
        };
        // Keys are ordered by time, so that the oldest events are found when there are too many.
        let event_key = format!("{}{at_unix_ms:013}-{}", key::EVENT, random_hex::<6>());
        Write::put(event_key, emit(&event))
    }
}

impl Controller {
    /// Creates a controller, the proof for its own work, and the queue of changes for the task of the
    /// leader.
    pub(crate) fn new(
        name: String,
        config: Config,
        store: Arc<dyn Store>,
        authority: Authority,
        role: watch::Receiver<Role>,
    ) -> (Arc<Controller>, Checked, mpsc::UnboundedReceiver<Touched>) {
        let (work, inbox) = mpsc::unbounded_channel();
        let metrics = Metrics::new();
        let failed_writes = metrics.failed_writes();
        let failures = WriteFailures::new(failed_writes);
        let store: Arc<dyn Store> = Arc::new(Noted::new(store, failures.clone()));
        let session = Session::new(store.clone(), config.lease());
        let (store, own) = CheckedStore::new(store);
        let controller = Controller {
            limits: Limits::new(&config.limits),
            budget: Budget::new(&config.limits),
            session,
            liveness: Liveness::default(),
            heard: Heard::default(),
            token_uses: TokenUses::default(),
            metrics,
            streams: Streams::default(),
            tasks: Tasks::default(),
            view: RwLock::default(),
            applied: watch::channel(0).0,
            waiting: Mutex::default(),
            filled: watch::channel(false).0,
            shutdown: watch::channel(false).0,
            reports: Mutex::default(),
            failures,
            progress: Mutex::default(),
            name,
            config,
            store,
            authority,
            role,
            work,
        };
        (Arc::new(controller), own, inbox)
    }

    /// Returns the view of the store's content. The guard must not be held over an await.
    pub(crate) fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read()
    }

    fn view_mut(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write()
    }

    /// Returns the latest reports of the nodes that report to this controller.
    pub(crate) fn reports(&self) -> MutexGuard<'_, HashMap<Name, Reported>> {
        self.reports.lock()
    }

    /// Stores the latest report of a node, unless the node was deleted in the meantime.
    pub(crate) fn keep_report(&self, caller: &Presented, report: Report) {
        let reported = Reported {
            node: caller.node.clone(),
            at_unix_ms: unix_ms(),
            report,
        };
        // A deletion is applied to the view either before this, so that the certificate is no
        // longer valid, or afterwards, and then the report is removed.
        let view = self.view();
        if view.accepted(caller).is_some() {
            self.reports().insert(caller.node.clone(), reported);
        }
    }

    /// Returns when a node last reported to this controller, milliseconds since 1970.
    pub(crate) fn seen_unix_ms(&self, node: &Name) -> Option<u64> {
        self.reports().get(node).map(|reported| reported.at_unix_ms)
    }

    /// Commits writes together with their event and audit entry, and waits until the view contains
    /// them.
    pub(crate) async fn commit(
        &self,
        checked: &Checked,
        mut writes: Vec<Write>,
        about: About,
        kind: &str,
        message: String,
    ) -> Result<Revision, Error> {
        let audit = about.document(&mut writes, kind, message);
        let revision = self.store(checked).commit(writes).await?;
        if let Some(audit) = audit {
            audit.log(revision);
        }
        self.wait_until_applied(revision).await;
        Ok(revision)
    }

    /// Checks that the entry of a key is still that of a revision: the view may be behind the store.
    pub(crate) async fn still(
        &self,
        checked: &Checked,
        key: String,
        revision: Revision,
    ) -> Result<(), Error> {
        let check = Write::check(key, Expect::Revision(revision));
        self.store(checked).commit(vec![check]).await.map(drop)
    }

    /// Returns the store. Requests reach it only after all of their checks.
    pub(crate) fn store(&self, checked: &Checked) -> &Arc<dyn Store> {
        self.store.after(checked)
    }

    /// Returns why the last change was not written, for a minute: then another one may have to find out whether the
    /// store takes changes again.
    pub(crate) fn failed_write(&self) -> Option<String> {
        self.failures.last(FAILURE_COUNTS)
    }

    /// Returns why the view may be outdated, if it may.
    pub(crate) fn outdated(&self) -> Option<String> {
        self.progress.lock().fault(OUTDATED_AFTER)
    }

    /// Waits until the view contains everything written up to that revision.
    pub(crate) async fn wait_until_applied(&self, revision: Revision) {
        let waiting = {
            let mut waiting = self.waiting.lock();
            // This is read under the lock that `apply_updates` takes after it has changed the
            // value.
            if *self.applied.borrow() >= revision {
                return;
            }
            let (wake, woken) = oneshot::channel();
            waiting.entry(revision).or_default().push(wake);
            woken
        };
        if tokio::time::timeout(APPLY_TIMEOUT, waiting).await.is_err() {
            tracing::warn!(revision, "the view does not contain a committed change yet");
        }
    }

    /// Waits until the view has been filled from the store.
    pub(crate) async fn filled(&self) {
        // The sender is a field of `self`, so the channel is open.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    pub(crate) fn is_filled(&self) -> bool {
        *self.filled.borrow()
    }

    /// Waits until the controller shuts down.
    pub(crate) async fn shutdown_requested(&self) {
        // The sender is a field of `self`, so the channel is open.
        let _ = self
            .shutdown
            .subscribe()
            .wait_for(|shutdown| *shutdown)
            .await;
    }

    /// Returns a receiver of the revisions up to which the view is complete.
    pub(crate) fn changes(&self) -> watch::Receiver<Revision> {
        self.applied.subscribe()
    }

    /// Applies the store's changes to the view, forever.
    pub(crate) async fn follow(self: Arc<Self>, own: Checked) {
        let mut follow = Follow::new(self.store(&own).clone(), "");
        *self.progress.lock() = follow.progress();
        loop {
            let mut updates = vec![follow.next().await];
            while updates.len() < CHANGES_AT_ONCE
                && let Some(update) = follow.next().now_or_never()
            {
                updates.push(update);
            }
            self.apply_updates(updates);
        }
    }

    fn apply_updates(&self, updates: Vec<Update>) {
        let applied = self.update_view(updates);
        if applied.is_new {
            self.streams.renew_all();
            self.compare_settings();
            self.filled.send_replace(true);
            // The leader examines everything.
            let _ = self.work.send(Touched::Nothing);
        }
        for touched in applied.touched {
            self.notify(touched);
        }
        self.applied.send_replace(applied.complete);
        self.wake_waiting(applied.complete);
    }

    fn update_view(&self, updates: Vec<Update>) -> Applied {
        let mut view = self.view_mut();
        let was_whole = view.fault().is_none();
        let mut touched = Vec::new();
        let mut is_new = false;
        for update in updates {
            match update {
                Update::Change(change) => touched.push(view.apply(change)),
                Update::All(entries) => {
                    let next = View::of(entries);
                    let before = std::mem::replace(&mut *view, next);
                    // Deleted nodes are announced after the new state. A node may have been
                    // deleted and created again unseen.
                    touched.retain(|touched| matches!(touched, Touched::Deleted(_)));
                    touched.extend(before.nodes_gone_in(&view).map(Touched::Deleted));
                    is_new = true;
                }
            }
        }
        Applied {
            touched,
            // Nothing was pushed or decided while the view was not whole.
            is_new: is_new || !was_whole && view.fault().is_none(),
            complete: view.complete,
        }
    }

    /// Wakes the tasks that wait for a revision that the view contains.
    fn wake_waiting(&self, complete: Revision) {
        let woken = {
            let mut waiting = self.waiting.lock();
            let later = waiting.split_off(&(complete + 1));
            std::mem::replace(&mut *waiting, later)
        };
        for wake in woken.into_values().flatten() {
            // A waiter that has given up need not be woken.
            let _ = wake.send(());
        }
    }

    /// Notifies streams and the task of the leader.
    fn notify(&self, touched: Touched) {
        self.notify_streams(&touched);
        let is_work = matches!(
            touched,
            Touched::Registration(_)
                | Touched::Flow { .. }
                | Touched::Lost(_)
                | Touched::Received(_)
                | Touched::Health(_)
                | Touched::Observation(_)
        );
        if is_work {
            // The receiver is dropped only when the controller stops.
            let _ = self.work.send(touched);
        }
    }

    fn notify_streams(&self, touched: &Touched) {
        match touched {
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
            Touched::Keys(name) => {
                let ends: Vec<Name> = self.view().ends_of(name).cloned().collect();
                self.streams.renew(name);
                ends.iter().for_each(|node| self.streams.renew(node));
            }
            Touched::Paths(nodes) => nodes.iter().for_each(|node| self.streams.renew(node)),
            Touched::Incarnation => self.streams.renew_all(),
            Touched::Settings => self.compare_settings(),
            Touched::Lost(_)
            | Touched::Received(_)
            | Touched::Health(_)
            | Touched::Observation(_)
            | Touched::Event
            | Touched::Nothing => {}
        }
    }

    /// Returns the settings that should be the leader's and are not.
    pub(crate) fn differing_settings(&self) -> Vec<String> {
        let view = self.view();
        let leaders = view.settings.as_ref();
        leaders.map_or_else(Vec::new, |leaders| {
            settings::differing(&settings::common(&self.config), leaders)
        })
    }

    fn compare_settings(&self) {
        let keys = self.differing_settings();
        if !keys.is_empty() {
            tracing::warn!(
                keys = keys.join(", "),
                "settings that all controllers should have in common differ from the leader's"
            );
        }
    }

    /// Discards the local state of a deleted node, so that a later node of the same name does not
    /// inherit it.
    fn forget(&self, node: &Name) {
        self.reports().remove(node);
        self.budget.forget(node);
        self.liveness.forget(node);
    }

    /// Returns the nodes that depend on a node's paths and uplinks: the egresses of its flows, the
    /// nodes to which it may have discovered paths, and the node itself.
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
        peers.extend(view.partners(name));
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}
