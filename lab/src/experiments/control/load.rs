use super::CHANGES_PER_S;
use super::fleet::{Fleet, flow_name};
use super::measure::Latencies;
use hawser_client::OperatorClient;
use hawser_model::resource::Override;
use hawser_units::PolicyCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The distance between flows changed one after the other, so that the changes are spread over the
/// nodes and no flow is changed twice. It is a prime that divides no number of flows.
const STRIDE: usize = 7_919;

/// The number of times that a change is requested while no controller accepts it, and the pause
/// between.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(100);

/// Both of the paths of a simulated node.
const BOTH_PATHS: PolicyCode = PolicyCode(0b11);

/// Policy changes at a steady rate, caused alternately by an operator and by an observation of a
/// node.
pub(super) struct Changes {
    stop: watch::Sender<bool>,
    task: JoinHandle<usize>,
}

impl Changes {
    pub(super) fn start(
        operator: &Arc<OperatorClient>,
        fleet: &Arc<Fleet>,
        latencies: &Arc<Latencies>,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(change(
            Arc::clone(operator),
            Arc::clone(fleet),
            Arc::clone(latencies),
            stopped,
        ));
        Changes { stop, task }
    }

    /// Stops making changes and waits for those in progress. Returns their total number.
    pub(super) async fn stop(self) -> usize {
        self.stop.send_replace(true);
        self.task.await.expect("making changes does not panic")
    }
}

async fn change(
    operator: Arc<OperatorClient>,
    fleet: Arc<Fleet>,
    latencies: Arc<Latencies>,
    stopped: watch::Receiver<bool>,
) -> usize {
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / CHANGES_PER_S));
    let mut changing = JoinSet::new();
    let mut made = 0;
    while !*stopped.borrow() && made < fleet.flows() {
        ticks.tick().await;
        let flow = made * STRIDE % fleet.flows();
        let change = Change {
            flow,
            fleet: Arc::clone(&fleet),
            latencies: Arc::clone(&latencies),
            operator: (made % 2 == 0).then(|| Arc::clone(&operator)),
        };
        changing.spawn(change.make());
        made += 1;
    }
    changing.join_all().await;
    made
}

/// The change of a flow.
struct Change {
    flow: usize,
    fleet: Arc<Fleet>,
    latencies: Arc<Latencies>,
    /// The operator who makes the change; `None` if an observation of a node causes it.
    operator: Option<Arc<OperatorClient>>,
}

impl Change {
    /// Requests the change until a controller accepts it.
    async fn make(self) {
        self.fleet.note_request(self.flow);
        for _ in 0..ATTEMPTS {
            if self.request().await {
                self.fleet.note_acceptance(self.flow);
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns whether a controller has accepted the change.
    async fn request(&self) -> bool {
        let Some(operator) = &self.operator else {
            return self.fleet.degrade(self.flow).await;
        };
        let (flow, choice) = (flow_name(self.flow), Override { code: BOTH_PATHS });
        let outcome = operator.override_policy(&flow, choice).await;
        self.latencies.record_response(outcome).is_some()
    }
}
