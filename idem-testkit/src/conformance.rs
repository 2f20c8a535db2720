/// One test for each case, for one harness. Put it into a module of its own.
///
/// The cases come from the one list in this crate, so a backend gets new ones with the next version and cannot
/// leave any out. The argument is an expression that makes the harness; it is evaluated once for each test.
///
/// A case that needs a hook which the harness does not have prints `SKIPPED` and the reason. So does a case
/// whose database cannot be reached, unless `CI=true` is in the environment: then it fails.
///
/// See [`Harness`](crate::Harness) for a whole example.
#[macro_export]
macro_rules! conformance {
    ($harness:expr $(,)?) => {
        $crate::for_each_case! { $harness }
    };
}
