//! Groups of tasks whose end can be waited for.
//!
//! Tasks hold the controller and with it the store. A controller has released its store only when
//! all of them have ended.

use hyper::rt::Executor;
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The time that aborted tasks have to end, which they do where they wait next.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A group of tasks. Its clones are the same group.
#[derive(Clone, Default)]
pub(crate) struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    /// Starts a task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        // Tasks that have ended are removed here, so that the group does not grow.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Waits until all tasks have ended and have dropped what they held. Aborts the tasks that have
    /// not ended after `timeout`, and returns their number.
    pub(crate) async fn end_within(&self, timeout: Duration) -> usize {
        if tokio::time::timeout(timeout, self.ended()).await.is_ok() {
            return 0;
        }
        let left = self.abort();
        if tokio::time::timeout(ABORT_TIMEOUT, self.ended())
            .await
            .is_err()
        {
            tracing::error!("aborted tasks do not end and still hold the store");
        }
        left
    }

    /// Waits until there are no tasks.
    async fn ended(&self) {
        // A panic of a task has already been reported.
        while poll_fn(|context| self.0.lock().poll_join_next(context))
            .await
            .is_some()
        {}
    }

    /// Aborts all tasks and returns their number.
    fn abort(&self) -> usize {
        let mut tasks = self.0.lock();
        tasks.abort_all();
        tasks.len()
    }
}

/// Runs the requests of an HTTP/2 connection, each of which is a task.
impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    /// A timeout longer than any operation takes on a busy machine.
    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn tasks_have_dropped_what_they_held_when_the_group_has_ended() {
        let (tasks, held) = (Tasks::default(), Arc::new(()));
        for _ in 0..100 {
            let held = held.clone();
            tasks.spawn(async move {
                tokio::task::yield_now().await;
                drop(held);
            });
        }
        assert_eq!(tasks.end_within(TIMEOUT).await, 0);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn a_task_that_starts_another_one_is_waited_for_with_it() {
        let (tasks, held) = (Tasks::default(), Arc::new(()));
        let (group, inner) = (tasks.clone(), held.clone());
        tasks.spawn(async move {
            tokio::task::yield_now().await;
            group.spawn(async move {
                tokio::task::yield_now().await;
                drop(inner);
            });
        });
        assert_eq!(tasks.end_within(TIMEOUT).await, 0);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn a_task_that_does_not_end_is_aborted() {
        let (tasks, held) = (Tasks::default(), Arc::new(()));
        let inner = held.clone();
        tasks.spawn(async move {
            let _held = inner;
            pending().await
        });
        tasks.spawn(async {});
        assert_eq!(tasks.end_within(Duration::from_millis(10)).await, 1);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn tasks_that_have_ended_do_not_stay_in_the_group() {
        let tasks = Tasks::default();
        for _ in 0..100 {
            tasks.spawn(async {});
            tokio::task::yield_now().await;
        }
        assert!(tasks.0.lock().len() < 10);
    }
}
