use super::CHANGES_PER_S;
use super::fleet::{Fleet, flow_name};
use super::measure::Latencies;
use hawser_client::OperatorClient;
use hawser_control::resource::Override;
use hawser_units::PolicyCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The distance between flows changed one after the other, so that the changes are spread over the
/// nodes and no flow is changed twice. It is a prime that divides no number of flows.
const STRIDE: usize = 7_919;

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
        let fleet = Arc::clone(&fleet);
        if made % 2 == 0 {
            let (operator, latencies) = (Arc::clone(&operator), Arc::clone(&latencies));
            changing.spawn(override_policy(operator, fleet, latencies, flow));
        } else {
            changing.spawn(degrade(fleet, flow));
        }
        made += 1;
    }
    changing.join_all().await;
    made
}

/// Makes a change as the operator.
async fn override_policy(
    operator: Arc<OperatorClient>,
    fleet: Arc<Fleet>,
    latencies: Arc<Latencies>,
    flow: usize,
) {
    fleet.note_request(flow);
    let choice = Override { code: BOTH_PATHS };
    latencies.record_response(operator.override_policy(&flow_name(flow), choice).await);
}

/// Causes a change by an observation of a node.
async fn degrade(fleet: Arc<Fleet>, flow: usize) {
    fleet.note_request(flow);
    fleet.degrade(flow).await;
}
