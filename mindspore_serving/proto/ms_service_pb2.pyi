from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MS_UNKNOWN: _ClassVar[DataType]
    MS_BOOL: _ClassVar[DataType]
    MS_INT8: _ClassVar[DataType]
    MS_UINT8: _ClassVar[DataType]
    MS_INT16: _ClassVar[DataType]
    MS_UINT16: _ClassVar[DataType]
    MS_INT32: _ClassVar[DataType]
    MS_UINT32: _ClassVar[DataType]
    MS_INT64: _ClassVar[DataType]
    MS_UINT64: _ClassVar[DataType]
    MS_FLOAT16: _ClassVar[DataType]
    MS_FLOAT32: _ClassVar[DataType]
    MS_FLOAT64: _ClassVar[DataType]
    MS_STRING: _ClassVar[DataType]
    MS_BYTES: _ClassVar[DataType]
MS_UNKNOWN: DataType
MS_BOOL: DataType
MS_INT8: DataType
MS_UINT8: DataType
MS_INT16: DataType
MS_UINT16: DataType
MS_INT32: DataType
MS_UINT32: DataType
MS_INT64: DataType
MS_UINT64: DataType
MS_FLOAT16: DataType
MS_FLOAT32: DataType
MS_FLOAT64: DataType
MS_STRING: DataType
MS_BYTES: DataType

class PredictRequest(_message.Message):
    __slots__ = ("servable_spec", "instances")
    SERVABLE_SPEC_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    servable_spec: ServableSpec
    instances: _containers.RepeatedCompositeFieldContainer[Instance]
    def __init__(self, servable_spec: _Optional[_Union[ServableSpec, _Mapping[str, object]]] = ..., instances: _Optional[_Iterable[_Union[Instance, _Mapping[str, object]]]] = ...) -> None: ...

class PredictReply(_message.Message):
    __slots__ = ("servable_spec", "instances", "error_msg")
    SERVABLE_SPEC_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    ERROR_MSG_FIELD_NUMBER: _ClassVar[int]
    servable_spec: ServableSpec
    instances: _containers.RepeatedCompositeFieldContainer[Instance]
    error_msg: _containers.RepeatedCompositeFieldContainer[ErrorMsg]
    def __init__(self, servable_spec: _Optional[_Union[ServableSpec, _Mapping[str, object]]] = ..., instances: _Optional[_Iterable[_Union[Instance, _Mapping[str, object]]]] = ..., error_msg: _Optional[_Iterable[_Union[ErrorMsg, _Mapping[str, object]]]] = ...) -> None: ...

class ServableSpec(_message.Message):
    __slots__ = ("name", "method_name", "version_number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METHOD_NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    method_name: str
    version_number: int
    def __init__(self, name: _Optional[str] = ..., method_name: _Optional[str] = ..., version_number: _Optional[int] = ...) -> None: ...

class Instance(_message.Message):
    __slots__ = ("items", "output_buffers")
    class ItemsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping[str, object]]] = ...) -> None: ...
    class OutputBuffersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ShmTensorData
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ShmTensorData, _Mapping[str, object]]] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BUFFERS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.MessageMap[str, Tensor]
    output_buffers: _containers.MessageMap[str, ShmTensorData]
    def __init__(self, items: _Optional[_Mapping[str, Tensor]] = ..., output_buffers: _Optional[_Mapping[str, ShmTensorData]] = ...) -> None: ...

class ErrorMsg(_message.Message):
    __slots__ = ("error_code", "error_msg")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MSG_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_msg: bytes
    def __init__(self, error_code: _Optional[int] = ..., error_msg: _Optional[bytes] = ...) -> None: ...

class TensorShape(_message.Message):
    __slots__ = ("dims",)
    DIMS_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dims: _Optional[_Iterable[int]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("shape", "dtype", "data", "shm_data", "bytes_val")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHM_DATA_FIELD_NUMBER: _ClassVar[int]
    BYTES_VAL_FIELD_NUMBER: _ClassVar[int]
    shape: TensorShape
    dtype: DataType
    data: bytes
    shm_data: ShmTensorData
    bytes_val: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shape: _Optional[_Union[TensorShape, _Mapping[str, object]]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., data: _Optional[bytes] = ..., shm_data: _Optional[_Union[ShmTensorData, _Mapping[str, object]]] = ..., bytes_val: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ShmTensorData(_message.Message):
    __slots__ = ("memory_key", "bytes_size", "data_offset", "data_size")
    MEMORY_KEY_FIELD_NUMBER: _ClassVar[int]
    BYTES_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_SIZE_FIELD_NUMBER: _ClassVar[int]
    memory_key: str
    bytes_size: int
    data_offset: int
    data_size: int
    def __init__(self, memory_key: _Optional[str] = ..., bytes_size: _Optional[int] = ..., data_offset: _Optional[int] = ..., data_size: _Optional[int] = ...) -> None: ...

class TensorInfo(_message.Message):
    __slots__ = ("shape", "dtype", "size", "is_no_batch_dim")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    IS_NO_BATCH_DIM_FIELD_NUMBER: _ClassVar[int]
    shape: TensorShape
    dtype: DataType
    size: int
    is_no_batch_dim: bool
    def __init__(self, shape: _Optional[_Union[TensorShape, _Mapping[str, object]]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., size: _Optional[int] = ..., is_no_batch_dim: _Optional[bool] = ...) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class PingReply(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class PongRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class PongReply(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...
