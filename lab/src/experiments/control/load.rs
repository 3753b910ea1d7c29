use super::CHANGES_PER_S;
use super::fleet::{Fleet, flow_name};
use super::measure::Latencies;
use hawser_client::OperatorClient;
use hawser_control::resource::Override;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Flows are changed in an order that spreads them over the nodes; each once. A prime that divides no number of flows.
const STRIDE: usize = 7_919;

/// Both of the paths of a simulated node.
const BOTH_PATHS: u8 = 0b11;

/// Policies that change at a steady rate, in turn by an operator and by what a node observes.
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

    /// Makes no further changes and waits for those that were asked for. Returns how many there were.
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
        let (operator, fleet, latencies) = (
            Arc::clone(&operator),
            Arc::clone(&fleet),
            Arc::clone(&latencies),
        );
        let is_ordered = made % 2 == 0;
        changing.spawn(async move {
            fleet.asks_for(flow);
            if is_ordered {
                let choice = Override { code: BOTH_PATHS };
                latencies.asked(operator.override_policy(&flow_name(flow), choice).await);
            } else {
                fleet.degrade(flow).await;
            }
        });
        made += 1;
    }
    changing.join_all().await;
    made
}
