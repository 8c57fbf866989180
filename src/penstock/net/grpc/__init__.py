"""The gRPC port: Pravega's controller service and the native one."""
